"""The Spark session of a home: it uses the embedded catalog, listens only on loopback, and writes only to the home."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from hypaware import durable
from hypaware.engine import archive, cluster, importing, jars, java, spark_home
from hypaware.engine.jvm import EXIT_SECONDS, Jvm, Launch
from hypaware.engine.jvm import start as start_jvm
from hypaware.engine.scratch import Scratch
from hypaware.home import Home, cache_dir

if TYPE_CHECKING:
    from py4j.java_gateway import JVMView
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

CATALOG = "hyp"
NAMESPACE = "hypaware"


@dataclass
class EngineSession:
    spark: SparkSession
    process: Jvm
    _scratch: Scratch
    _closed: bool = False

    @property
    def jvm_pid(self) -> int:
        return self.process.pid

    @property
    def jvm(self) -> JVMView:
        """The py4j view of the JVM's classes."""
        return self.spark.sparkContext._jvm

    def close(self, timeout: float = EXIT_SECONDS) -> None:
        """Stop the JVM, which releases the lake lock. Can be called twice, and after the JVM has died."""
        if not self._closed:
            self._closed = True
            _reset_pyspark(self.process.alive)
            self.process.close(timeout)
            self._scratch.remove()


def open_session(
    home: Home,
    *,
    master: str = "local[*]",
    memory: str = "1g",
    cache: Path | None = None,
    extra: Mapping[str, str] | None = None,
    app_name: str = "hypaware",
    archive_options: Sequence[str] | None = None,
) -> EngineSession:
    """Start the JVM and the session. The lake lock must be acquired afterwards, before the lake is read.

    `extra` holds further Spark settings; `archive_options` replaces the options that use the class archive.
    """
    if _has_session():
        raise RuntimeError("this process already has a Spark session; PySpark supports only one for each process")
    cache = cache_dir() if cache is None else cache
    home = Home(home.root.absolute())
    java_found = java.find()
    own_jars = jars.installed(cache)
    master_settings = cluster.settings(master, own_jars, memory)
    class_path = spark_home.class_path(own_jars)
    if archive_options is None:
        archive_options = archive.options(archive.locate(cache, java_found, class_path))
    for folder in (home.engine / "tmp", home.warehouse):
        durable.make_dir(folder)
    scratch = Scratch.create(home.engine / "tmp")
    process = start_jvm(
        Launch(
            java=java_found,
            class_path=class_path,
            memory=memory,
            scratch=scratch.path,
            log=home.engine / "jvm.log",
            archive_options=archive_options,
            keep_open=(scratch.fd,),
        )
    )
    settings = {
        **settings_for(home, scratch.path),
        **master_settings,
        "spark.master": master,
        "spark.app.name": app_name,
        **(extra or {}),
    }
    try:
        with cluster.reaching(master):
            spark = _connect(process, settings)
    except BaseException:
        process.kill()
        _reset_pyspark(alive=False)
        scratch.remove()
        raise
    return EngineSession(spark, process, scratch)


def settings_for(home: Home, scratch: Path) -> dict[str, str]:
    catalog = f"spark.sql.catalog.{CATALOG}"
    database = quote(str(home.catalog), safe="/")
    return {
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "jdbc",
        f"{catalog}.uri": f"jdbc:sqlite:file:{database}?journal_mode=WAL&synchronous=FULL&busy_timeout=10000",
        f"{catalog}.jdbc.schema-version": "V1",
        f"{catalog}.warehouse": f"file://{home.warehouse}",
        f"{catalog}.cache-enabled": "false",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalogImplementation": "in-memory",
        # The only namespace that views can have. Queries may qualify a dataset with it, as in the catalog.
        "spark.sql.globalTempDatabase": NAMESPACE,
        "spark.sql.runSQLOnFiles": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.warehouse.dir": f"file://{scratch}/warehouse",
        "spark.hadoop.fs.permissions.umask-mode": "077",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Retained even without a UI; by default a hundred thousand tasks.
        "spark.ui.retainedJobs": "50",
        "spark.ui.retainedStages": "50",
        "spark.ui.retainedTasks": "1000",
        "spark.sql.ui.retainedExecutions": "50",
        "spark.python.daemon.module": "hypaware.engine.worker_daemon",
    }


def _connect(process: Jvm, settings: Mapping[str, str]) -> SparkSession:
    with importing.alone:
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession

    gateway = process.connect()
    conf = SparkConf(_jvm=gateway.jvm)
    for key, value in settings.items():
        conf.set(key, value)
    with _keep_sigint_handler():
        context = SparkContext(conf=conf, gateway=gateway)
    context.pythonExec = sys.executable
    _disable_checksum_files(context)
    return SparkSession(context)


@contextmanager
def _keep_sigint_handler() -> Iterator[None]:
    """Restore the SIGINT handler, which PySpark's context replaces in the main thread."""
    previous = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, previous)


def _disable_checksum_files(context: SparkContext) -> None:
    """Disable Hadoop's `.crc` files for local files. They are not fsynced, so after a power cut a stale one makes an
    intact file unreadable. Parquet and Avro have their own checksums. The JVM caches one local file system."""
    local = context._jvm.org.apache.hadoop.fs.FileSystem.getLocal(context._jsc.hadoopConfiguration())
    local.setWriteChecksum(False)
    local.setVerifyChecksum(False)


def _has_session() -> bool:
    with importing.alone:
        loaded = sys.modules.get("pyspark")
    return loaded is not None and loaded.SparkContext._active_spark_context is not None


def _reset_pyspark(alive: bool) -> None:
    """Reset PySpark's globals, so that the next session starts its own JVM."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context
    # If the JVM dies now, everything is stopped anyway.
    with suppress(Exception):
        if context is not None and alive:
            context.stop()
    if SparkContext._gateway is not None:
        SparkContext._gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
