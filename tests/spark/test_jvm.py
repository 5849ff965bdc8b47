"""The driver JVM: damaged archives, invalid options, the lake lock, and the death of its owner."""

from __future__ import annotations

import fcntl
import gc
import os
import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from hypaware.engine import jars, jvm
from hypaware.engine.session import EngineSession, acquire_lake_lock
from hypaware.errors import ConfigError, Retryable
from hypaware.home import Home, cache_dir
from tests.support import processes

pytestmark = pytest.mark.spark


@pytest.fixture
def launch(engine_session: EngineSession, tmp_path: Path) -> Callable[..., jvm.Jvm]:
    """A JVM with Spark's gateway and without a session, which starts in a second."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    class_path = jvm.build_class_path(jars.find_installed_jars(cache_dir()))
    return partial(jvm.start_jvm, jvm.find_java(), class_path, scratch=scratch, log_file=tmp_path / "jvm.log")


@contextmanager
def closed_at_end(process: jvm.Jvm) -> Iterator[jvm.Jvm]:
    try:
        yield process
    finally:
        process.close()


def test_an_invalid_archive_does_not_stop_the_jvm(launch: Callable[..., jvm.Jvm], tmp_path: Path) -> None:
    """Damage that the stamp does not show is left to the JVM, which silently ignores the archive."""
    noise = tmp_path / "noise.jsa"
    noise.write_bytes(secrets.token_bytes(100_000))
    options = ("-Xshare:auto", f"-XX:SharedArchiveFile={noise}")

    with closed_at_end(launch(memory="256m", archive_options=options)) as process:
        gateway = process.connect()
        assert gateway.jvm.java.lang.Math.abs(-1) == 1
        gateway.shutdown()

    assert (tmp_path / "jvm.log").read_text() == ""


def test_a_jvm_that_cannot_start_reports_the_reason(launch: Callable[..., jvm.Jvm]) -> None:
    with (
        closed_at_end(launch(memory="1k")) as process,
        pytest.raises(Retryable, match="Too small maximum heap") as failed,
    ):
        process.connect()

    assert failed.value.kind == "jvm_failed"


@pytest.mark.parametrize("memory", ["", "1", "0g", "1GiB", "1g -version", "lots"])
def test_an_invalid_memory_setting_is_rejected(memory: str) -> None:
    with pytest.raises(ConfigError, match=r"engine\.memory"):
        jvm.parse_heap_size(memory)


def is_free(path: Path) -> bool:
    """Check from another process, because Java uses POSIX locks."""
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def never(seconds: float) -> None:
    raise AssertionError("the lock is free, nobody has to wait")


@pytest.mark.hazard(76)
def test_a_jvm_that_holds_the_lock_keeps_one_handle(engine_session: EngineSession, home: Home) -> None:
    first = acquire_lake_lock(engine_session.jvm, home.lake_lock, never)
    again = acquire_lake_lock(engine_session.jvm, home.lake_lock, never)
    gc.collect()
    engine_session.jvm.java.lang.System.gc()

    assert again is first
    assert not is_free(home.lake_lock)
    opened = [file.path for file in psutil.Process(engine_session.jvm_pid).open_files()]
    assert opened.count(str(home.lake_lock)) == 1
    assert home.lake_lock.stat().st_mode & 0o077 == 0
    assert home.lake.stat().st_mode & 0o077 == 0


_OWNER = """
from hypaware.engine.session import open_session
from hypaware.home import Home

home = Home.from_environment()
session = open_session(home, master="local[1]", memory="512m")
session.own_lake(lambda *_: None)
session.spark.sparkContext.parallelize([1], 1).collect()
print(session.jvm_pid, flush=True)
input()
"""


class GaveUp(Exception):
    pass


def give_up(seconds: float) -> None:
    raise GaveUp


@pytest.mark.hazard(9)
def test_the_lake_of_a_killed_driver_is_free_only_after_its_jvm_has_ended(
    engine_session: EngineSession, home: Home
) -> None:
    with processes.running(_OWNER, home) as owner:
        assert owner.stdout is not None
        owners_jvm = psutil.Process(int(owner.stdout.readline()))
        with pytest.raises(GaveUp):
            acquire_lake_lock(engine_session.jvm, home.lake_lock, give_up)
        assert not is_free(home.lake_lock), "giving up does not release the lock"
        workers = owners_jvm.children(recursive=True)

        # A suspended JVM: its driver is dead, and it has not noticed yet.
        owners_jvm.send_signal(signal.SIGSTOP)
        processes.kill(owner)
        waits: list[float] = []

        def wait(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 5:
                assert owners_jvm.is_running()
                owners_jvm.send_signal(signal.SIGCONT)

        acquire_lake_lock(engine_session.jvm, home.lake_lock, wait)

    assert len(waits) >= 5
    assert waits == sorted(waits)
    with suppress(psutil.NoSuchProcess):
        owners_jvm.wait(processes.PATIENCE)
    assert psutil.wait_procs(workers, timeout=processes.PATIENCE)[1] == []
    assert not is_free(home.lake_lock)


@pytest.mark.parametrize("for_cluster", [True, False])
def test_the_settings_of_a_cluster_are_read_only_for_a_cluster(
    launch: Callable[..., jvm.Jvm], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, for_cluster: bool
) -> None:
    (tmp_path / "hadoop").mkdir()
    (tmp_path / "hadoop" / "core-site.xml").write_text(
        "<configuration><property><name>fs.defaultFS</name><value>hdfs://cluster</value></property></configuration>"
    )
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path / "hadoop"))
    with closed_at_end(launch(memory="64m", for_cluster=for_cluster)) as process:
        gateway = process.connect()
        configured = gateway.jvm.org.apache.hadoop.conf.Configuration().get("fs.defaultFS")
        gateway.shutdown()
    assert configured == ("hdfs://cluster" if for_cluster else "file:///")
