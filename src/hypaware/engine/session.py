"""The Spark session of a home: it uses the embedded catalog, listens only on loopback, and writes only to the home.

If `engine.master` is a cluster, the jobs are the same. Executors fetch the jars and hypaware from the driver. They
share only the folders of the lake into which tasks write data files; the driver fsyncs and commits them.

Spark's ports accept only connections that prove a secret, so that other users of the machine cannot read rows or send
objects. Spark generates a new secret in each JVM, which never leaves its memory. A standalone cluster has one secret
for its master, workers and drivers, which `engine.secret_file` names; without it, no authentication is used there.

The temporary files of a session are in `<home>/engine/tmp/spark-*`. The folder is locked (flock) through a descriptor
that this process and its JVM share, so it stays locked while either of them runs. The next session removes folders that
are not locked.

@ref engine#cluster
@ref engine#pools
@ref engine#ports
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from py4j.protocol import Py4JJavaError

from hypaware.config.shared_lake import SharedLake, find_shared_lake
from hypaware.config.spark_settings import find_refusal
from hypaware.engine import class_archive, jars, jobs, jvm
from hypaware.engine.jvm import EXIT_SECONDS, Jvm, start_jvm
from hypaware.errors import HypError, NotReady
from hypaware.home import Home, cache_dir, durable_files
from hypaware.home.locks import lock_fd
from hypaware.home.storage import check_bucket

if TYPE_CHECKING:
    from py4j.java_gateway import JVMView
    from pyspark.sql import SparkSession

    from hypaware.engine.shared_session import LeaseHolder


CATALOG = "hyp"
NAMESPACE = "hypaware"
_STANDALONE = "spark"
_MASTER_PORT = 7077
_CONNECT_SECONDS = 10.0
_LOCK_POLL_SECONDS = 0.05
_DEFAULT_LINE = re.compile(r"(spark\.[^\s:=]+)\s*[\s:=]\s*(.*)")
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_MIN_SHUFFLE_PARTITIONS = 4


@dataclass
class EngineSession:
    spark: SparkSession
    process: Jvm
    _home: Home
    _scratch: ScratchFolder
    _shared: SharedLake | None = None
    _closed: bool = False
    _lease: LeaseHolder | None = None

    @property
    def jvm_pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.alive

    @property
    def jvm(self) -> JVMView:
        """The py4j view of the JVM's classes."""
        return self.spark.sparkContext._jvm

    @property
    def is_wanted(self) -> bool:
        """Whether another machine waits for the shared lake."""
        return self._lease is not None and self._lease.is_wanted

    def own_lake(self, wait: Callable[[float, str], None]) -> None:
        """Acquire the lock of the home, and the lease on a shared lake, whose catalog then has its epoch."""
        acquire_lake_lock(self.jvm, self._home.lake_lock, lambda seconds: wait(seconds, ""))
        if self._shared is None or self._lease is not None:
            return
        from hypaware.engine.shared_session import LeaseHolder

        check_bucket(self._shared.root)
        lease = LeaseHolder(self.jvm, self._shared, self.process.kill)
        try:
            address = lease.acquire(wait)
        except BaseException:
            lease.close()
            raise
        self._lease = lease
        try:
            self.spark.conf.set(f"spark.sql.catalog.{CATALOG}.uri", address)
            # The first use of the catalog creates its tables.
            self.spark.sql(f"SHOW NAMESPACES IN {CATALOG}").collect()
            lease.guard_catalog()
        except BaseException:
            # The catalog may have been loaded, and keeps the epoch that it was loaded with.
            self.process.kill()
            raise

    def make_active(self) -> None:
        """Set the active session of the JVM thread that belongs to this thread."""
        self.jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(self.spark._jsparkSession)

    def close(self, timeout: float = EXIT_SECONDS) -> None:
        """Stop the JVM, which releases the lake lock. Can be called twice, and after the JVM has died."""
        if not self._closed:
            self._closed = True
            if self._lease is not None:
                self._lease.close()
            _reset_pyspark(self.process.alive)
            self.process.close(timeout)
            self._scratch.remove()


def open_session(
    home: Home,
    *,
    master: str = "local[*]",
    memory: str = "1g",
    secret_file: str = "",
    cache: Path | None = None,
    extra: Mapping[str, str] | None = None,
    app_name: str = "hypaware",
    archive_options: Sequence[str] | None = None,
) -> EngineSession:
    """Start the JVM and the session. The lake lock must be acquired afterwards, before the lake is read.

    `extra` holds further Spark settings; `archive_options` replaces the options that use the class archive.
    """
    with jobs.import_lock:
        loaded = sys.modules.get("pyspark")
    if loaded is not None and loaded.SparkContext._active_spark_context is not None:
        raise RuntimeError("this process already has a Spark session; PySpark supports only one for each process")
    cache = cache_dir() if cache is None else cache
    home = Home(home.root.absolute())
    java_found = jvm.find_java()
    shared = find_shared_lake(home)
    own_jars = jars.find_installed_jars(cache)
    shared_jars = jars.find_installed_jars(cache, jars.shared_jars()) if shared else ()
    extra = dict(extra or {})
    master_settings = _cluster_settings(home, master, own_jars + shared_jars, memory, secret_file, shared)
    if not is_local(master):
        from hypaware.engine import executors

        extra |= executors.executor_settings(cache, extra)
        if shared is not None:
            from hypaware.engine.shared_session import shared_executor_settings

            extra |= shared_executor_settings(shared)
    class_path = jvm.build_class_path(own_jars)
    if archive_options is None:
        archive_options = class_archive.archive_options(class_archive.locate_archive(cache, java_found, class_path))
    for folder in (home.engine / "tmp", home.warehouse):
        durable_files.make_dir(folder)
    scratch = ScratchFolder.create(home.engine / "tmp")
    process = start_jvm(
        java_found,
        # Last, because the class path must begin with that of the class archive.
        class_path + shared_jars,
        memory,
        scratch.path,
        home.engine / "jvm.log",
        archive_options,
        keep_open=(scratch.fd,),
        for_cluster=not is_local(master),
    )
    settings = {
        **({} if is_local(master) else read_spark_defaults(os.environ)),
        **session_settings(home, scratch.path, shared),
        **master_settings,
        "spark.master": master,
        "spark.app.name": app_name,
        **extra,
    }
    try:
        try:
            spark = _connect(process, settings)
            if not is_local(master):
                executors.check_executors(spark, (shared.root,) if shared else (home.warehouse, home.settlements))
            if _SHUFFLE_PARTITIONS not in extra:
                cores = spark.sparkContext.defaultParallelism
                spark.conf.set(_SHUFFLE_PARTITIONS, max(cores, _MIN_SHUFFLE_PARTITIONS))
        except Exception as error:
            if is_local(master) or isinstance(error, HypError):
                raise
            raise _unreachable(master, error) from error
    except BaseException:
        process.kill()
        _reset_pyspark(alive=False)
        scratch.remove()
        raise
    return EngineSession(spark, process, home, scratch, shared)


def read_spark_defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings in `spark-defaults.conf` of SPARK_CONF_DIR that `[engine.spark]` could have too.

    Settings of the config and of HypAware itself are stronger. Secrets of storage are kept: they are not in the config.
    """
    folder = environment.get("SPARK_CONF_DIR")
    path = Path(folder, "spark-defaults.conf") if folder else None
    if path is None or not path.is_file():
        return {}
    found: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        # A name, then spaces, a colon or an equals sign, and the value, as in a Java properties file.
        if (pair := _DEFAULT_LINE.fullmatch(line.strip())) and find_refusal(pair[1]) is None:
            found[pair[1]] = pair[2].strip()
    return found


def session_settings(home: Home, scratch: Path, shared: SharedLake | None = None) -> dict[str, str]:
    catalog = f"spark.sql.catalog.{CATALOG}"
    database = quote(str(home.catalog), safe="/")
    place = {
        "uri": f"jdbc:sqlite:file:{database}?journal_mode=WAL&synchronous=FULL&busy_timeout=10000",
        "warehouse": f"file://{home.warehouse}",
    }
    if shared is not None:
        from hypaware.engine.shared_session import shared_settings

        place = shared_settings(shared)
    return {
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "jdbc",
        f"{catalog}.jdbc.schema-version": "V1",
        **{f"{catalog}.{name}": value for name, value in place.items()},
        f"{catalog}.cache-enabled": "false",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalogImplementation": "in-memory",
        # The only namespace that views can have. Queries may qualify a dataset with it, as in the catalog.
        "spark.sql.globalTempDatabase": NAMESPACE,
        "spark.sql.runSQLOnFiles": "false",
        "spark.sql.session.timeZone": "UTC",
        _SHUFFLE_PARTITIONS: str(_MIN_SHUFFLE_PARTITIONS),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.warehouse.dir": f"file://{scratch}/warehouse",
        "spark.hadoop.fs.permissions.umask-mode": "077",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.authenticate": "true",
        # A query need not wait for the tasks of an import, which are in a pool of their own.
        "spark.scheduler.mode": "FAIR",
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
    with jobs.import_lock:
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession

    gateway = process.connect()
    if not _has_name(os.getuid()):
        # Hadoop asks Java to log in the user, and Java cannot do that for one without a name.
        users = gateway.jvm.org.apache.hadoop.security.UserGroupInformation
        users.setLoginUser(users.createRemoteUser(gateway.jvm.System.getenv("SPARK_USER")))
    conf = SparkConf(_jvm=gateway.jvm)
    for key, value in settings.items():
        conf.set(key, value)
    # PySpark's context replaces the SIGINT handler in the main thread.
    sigint_handler = signal.getsignal(signal.SIGINT)
    try:
        context = SparkContext(conf=conf, gateway=gateway)
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, sigint_handler)
    context.pythonExec = settings.get("spark.pyspark.python", sys.executable)
    # Disable Hadoop's `.crc` files for local files. They are not fsynced, so after a power cut a stale one makes an
    # intact file unreadable. Parquet and Avro have their own checksums. The JVM caches one local file system.
    local = context._jvm.org.apache.hadoop.fs.FileSystem.getLocal(context._jsc.hadoopConfiguration())
    local.setWriteChecksum(False)
    local.setVerifyChecksum(False)
    return SparkSession(context)


def _has_name(user_id: int) -> bool:
    """Return whether the user has an account; a container may run as one that has none."""
    try:
        pwd.getpwuid(user_id)
    except KeyError:
        return False
    return True


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


def is_local(master: str) -> bool:
    """Return whether tasks run in the driver's JVM. `local-cluster` starts executors."""
    return master == "local" or master.startswith("local[")


def _cluster_settings(
    home: Home, master: str, jars: Sequence[Path], memory: str, secret_file: str, shared: SharedLake | None
) -> dict[str, str]:
    """Return the settings of a cluster, with this machine's address on the network of the master, for the executors.

    Fails early if the master does not answer, because Spark would retry for a minute and then end the JVM.
    """
    if is_local(master):
        return {}
    url = urlsplit(master.partition(",")[0])
    security: dict[str, str] = {}
    if url.scheme != _STANDALONE or not url.hostname:
        here = socket.getfqdn()
    else:
        security = _cluster_security(home, secret_file, shared)
        try:
            with socket.create_connection((url.hostname, url.port or _MASTER_PORT), timeout=_CONNECT_SECONDS) as sock:
                here = str(sock.getsockname()[0])
        except (OSError, ValueError) as error:
            raise _unreachable(master, error) from error
    return {
        "spark.jars": ",".join(jar.as_uri() for jar in jars),
        "spark.executor.memory": memory,
        "spark.driver.host": here,
        "spark.driver.bindAddress": here,
        **security,
    }


def _cluster_security(home: Home, secret_file: str, shared: SharedLake | None) -> dict[str, str]:
    """Return the settings for the secret of a standalone cluster, which encrypt the traffic too.

    Spark sends the settings of the catalog to every executor, so a password among them must be encrypted on its way.
    """
    if not secret_file and shared is not None and shared.password:
        raise _unusable_secret("it is not set, so the password of the database would be sent without encryption")
    if not secret_file:
        return {"spark.authenticate": "false"}
    path = home.root / Path(secret_file).expanduser()
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable_secret(f"cannot read {path}: {error}") from None
    if not secret:
        raise _unusable_secret(f"{path} is empty")
    return {"spark.authenticate.secret": secret, "spark.network.crypto.enabled": "true"}


def _unusable_secret(reason: str) -> NotReady:
    return NotReady(
        f"the secret of the Spark cluster (engine.secret_file) cannot be used: {reason}",
        kind="cluster_secret",
        repair="hyp config set engine.secret_file <file with the cluster's spark.authenticate.secret>",
    )


def _unreachable(master: str, error: Exception) -> HypError:
    # Read the exception while the JVM is still running.
    lines = str(error.java_exception if isinstance(error, Py4JJavaError) else error).strip().splitlines()
    hint = "; if it requires spark.authenticate.secret, engine.secret_file must name a file with that secret"
    return NotReady(
        f"cannot use the Spark master {master}: {lines[0] if lines else type(error).__name__}{hint}",
        kind="master_unreachable",
        repair="hyp config set engine.master 'local[*]'",
    )


@dataclass(frozen=True)
class ScratchFolder:
    path: Path
    fd: int

    @classmethod
    def create(cls, parent: Path) -> ScratchFolder:
        _remove_unlocked(parent)
        while True:
            path = Path(tempfile.mkdtemp(prefix="spark-", dir=parent))
            with suppress(FileNotFoundError):
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
                lock_fd(fd)
                # Another session may have removed it before it was locked.
                if path.exists():
                    return cls(path, fd)
                os.close(fd)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.fd)


def _remove_unlocked(parent: Path) -> None:
    for path in parent.glob("spark-*"):
        with suppress(FileNotFoundError):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                with suppress(BlockingIOError):
                    lock_fd(fd, wait=False)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(fd)


_held_locks: dict[tuple[int, Path], object] = {}


def acquire_lake_lock(view: JVMView, path: Path, wait: Callable[[float], None]) -> object:
    """Acquire the lock for the rest of the JVM's lifetime, or return the one that the JVM already holds.

    The JVM that commits holds the lock, not Python, so it is released exactly when that JVM cannot commit any more. It
    is a `FileChannel` lock (POSIX, per process). Closing any second handle on the file within the JVM would release it
    silently. So each JVM opens the file once, and keeps the channel open for its lifetime. The channel is referenced in
    `_held_locks`, because the garbage collector would close it otherwise.

    While another JVM holds it, `wait` is called repeatedly with the seconds waited so far, and may raise to stop.
    """
    owner = (int(view.java.lang.ProcessHandle.current().pid()), path)
    if owner in _held_locks:
        return _held_locks[owner]
    durable_files.make_dir(path.parent)
    channel = view.java.io.RandomAccessFile(str(path), "rw").getChannel()
    began = time.monotonic()
    try:
        while (lock := channel.tryLock()) is None:
            wait(time.monotonic() - began)
            time.sleep(_LOCK_POLL_SECONDS)
    except BaseException:
        channel.close()
        raise
    return _held_locks.setdefault(owner, (channel, lock))
