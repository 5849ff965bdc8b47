"""The Spark session of a home: the embedded catalog, quiet, on the loopback only, nothing outside the home."""

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
        """The gateway to the JVM's classes (py4j)."""
        return self.spark.sparkContext._jvm

    def close(self, patience: float = EXIT_SECONDS) -> None:
        """Ends the JVM, and with it the lake's lock. Safe to call twice, and when the JVM is dead already."""
        if not self._closed:
            self._closed = True
            _forget(self.process.alive)
            self.process.close(patience)
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
    """Starts the JVM and the session. Takes no lock on the lake: `lock.acquire` does, before anything is read.
    `extra` is for Spark; `archive_options` replaces the use of the class archive."""
    if _active():
        raise RuntimeError("this process has a Spark session already: PySpark keeps one for each process")
    cache = cache_dir() if cache is None else cache
    home = Home(home.root.absolute())
    found = java.find()
    ours = jars.installed(cache)
    beyond = cluster.settings(master, ours, memory)
    class_path = spark_home.class_path(ours)
    if archive_options is None:
        archive_options = archive.options(archive.locate(cache, found, class_path))
    for folder in (home.engine / "tmp", home.warehouse):
        durable.make_dir(folder)
    scratch = Scratch.make(home.engine / "tmp")
    process = start_jvm(
        Launch(
            java=found,
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
        **beyond,
        "spark.master": master,
        "spark.app.name": app_name,
        **(extra or {}),
    }
    try:
        with cluster.reaching(master):
            spark = _connect(process, settings)
    except BaseException:
        process.kill()
        _forget(alive=False)
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
        # The one namespace that views can have: queries may write it before a dataset's name, as the catalog has it.
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
        # Kept also without a UI, and by default a hundred thousand tasks of them.
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
    with _ctrl_c_as_it_was():
        context = SparkContext(conf=conf, gateway=gateway)
    context.pythonExec = sys.executable
    _write_no_checksum_files(context)
    return SparkSession(context)


@contextmanager
def _ctrl_c_as_it_was() -> Iterator[None]:
    """PySpark's context takes SIGINT over in the main thread, to cancel every job there is."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _write_no_checksum_files(context: SparkContext) -> None:
    """Hadoop puts a `.crc` beside every local file. After a power cut a stale one makes a sound file unreadable, and
    nobody fsyncs them; Parquet and Avro carry their own checksums. The JVM has one (cached) local file system."""
    local = context._jvm.org.apache.hadoop.fs.FileSystem.getLocal(context._jsc.hadoopConfiguration())
    local.setWriteChecksum(False)
    local.setVerifyChecksum(False)


def _active() -> bool:
    with importing.alone:
        loaded = sys.modules.get("pyspark")
    return loaded is not None and loaded.SparkContext._active_spark_context is not None


def _forget(alive: bool) -> None:
    """Leaves PySpark's own globals as they were before the session, so that the next one starts its own JVM."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context
    # A JVM that dies just now has stopped everything there is to stop.
    with suppress(Exception):
        if context is not None and alive:
            context.stop()
    if SparkContext._gateway is not None:
        SparkContext._gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
