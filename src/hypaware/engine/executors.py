"""The executors of a cluster: what they run, and a check of each machine before the first job.

Unless `[engine.spark]` names another Python (`spark.pyspark.python`), executors run `python3.x` of the driver's version
from their PATH, with the packages of an archive that the driver sends. Their worker daemon compares its versions with
those of the driver in EXPECTED and ends with a message if they differ, also on executors that join later.

`check_executors` runs one task for each core when a session opens. It finds machines without Python or hypaware, and
machines that do not share the folders or the bucket into which tasks write: a task must read the driver's probe there,
and the driver that of the task. Otherwise rows would be written to the disk of some executor and be missing from the
lake, or every task would fail for want of keys.

@ref engine#cluster
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from py4j.protocol import Py4JJavaError

from hypaware import __version__
from hypaware.engine.package_archive import ensure_package_archive
from hypaware.engine.worker_daemon import EXPECTED, describe_versions
from hypaware.errors import NotReady
from hypaware.home import durable_files
from hypaware.home.storage import ObjectPath, check_bucket, write_object

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYTHON = "spark.pyspark.python"
_ARCHIVES = "spark.archives"
_PATH = "spark.executorEnv.PYTHONPATH"
_UNPACKED = "hypaware-packages"
_START_SECONDS = 60.0
_POLL_SECONDS = 0.1
_MACHINE = re.compile(r"\((\S+) executor \S+\): (.*)", re.S)
_PYTHON_ERROR = re.compile(r"Error from python worker:\n(.*?)\nPYTHONPATH was", re.S)


def executor_settings(cache: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with which executors find Python and hypaware, next to those of `[engine.spark]`."""
    settings = {f"spark.executorEnv.{EXPECTED}": describe_versions()}
    if PYTHON not in extra:
        archive = f"{ensure_package_archive(cache).as_uri()}#{_UNPACKED}"
        settings[PYTHON] = f"python{sys.version_info.major}.{sys.version_info.minor}"
        settings[_ARCHIVES] = ",".join(filter(None, (archive, extra.get(_ARCHIVES))))
        # Relative to the folder of the executor.
        settings[_PATH] = os.pathsep.join(filter(None, (_UNPACKED, extra.get(_PATH))))
    return settings


class Probe(NamedTuple):
    machine: str
    unseen: tuple[str, ...]
    """The folders in which the driver's probe cannot be read."""
    written: tuple[Path, ...]
    """Probes that the driver must see."""
    error: str = ""


def check_executors(spark: SparkSession, folders: Sequence[Path]) -> None:
    """Raise NotReady, with the machine, unless all executors can run tasks and share the folders with the driver."""
    context = spark.sparkContext
    _wait_for_executor(spark)
    name = f".probe-{secrets.token_hex(8)}"
    probes: list[Path] = []
    try:
        for folder in folders:
            if isinstance(folder, ObjectPath):
                check_bucket(folder)
            probes.append(folder / name)
            _write_probe(probes[-1], name)
        # Spark fills all free cores at once, so these reach every executor that has registered.
        width = context.defaultParallelism
        probe = partial(probe_executor, paths=tuple(probes))
        try:
            found: list[Probe] = context.parallelize(range(width), width).map(probe).collect()
        except Py4JJavaError as error:
            raise _explain(str(error.java_exception.getMessage())) from error
        for each in found:
            probes += each.written
        for each in found:
            unseen = [*each.unseen, *(str(path.parent) for path in each.written if not path.exists())]
            if each.error or unseen:
                raise _not_shared(each, unseen, in_bucket=isinstance(folders[0], ObjectPath))
    finally:
        for path in probes:
            with suppress(OSError):
                path.unlink(missing_ok=True)


def probe_executor(number: int, paths: Sequence[Path]) -> Probe:
    """Look for the driver's probes in an executor, and write one next to each."""
    unseen, written, problem = [], [], ""
    for path in paths:
        try:
            if path.read_bytes().decode() != path.name:
                unseen.append(str(path.parent))
                continue
            own = path.with_name(f"{path.name}-{socket.gethostname()}-{os.getpid()}-{number}")
            _write_probe(own, own.name)
            written.append(own)
        except FileNotFoundError:
            unseen.append(str(path.parent))
        except (OSError, NotReady) as error:
            problem = str(error)
    return Probe(socket.gethostname(), tuple(unseen), tuple(written), problem)


def _write_probe(path: Path, text: str) -> None:
    if isinstance(path, ObjectPath):
        write_object(path, text.encode())
        return
    durable_files.make_dir(path.parent)
    path.touch(mode=0o600)
    path.write_text(text)


def _wait_for_executor(spark: SparkSession) -> None:
    """Wait for the first executor. Without a limit, Spark would wait forever for resources that do not exist."""
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    deadline = time.monotonic() + _START_SECONDS
    # The driver is one of them.
    while len(tracker.getExecutorInfos()) < 2:
        if time.monotonic() > deadline:
            raise NotReady(
                f"the Spark cluster {spark.sparkContext.master} started no executor in {_START_SECONDS:.0f} s: it has "
                "no free cores, or no worker with enough memory for spark.executor.memory (by default engine.memory)",
                kind="no_executor",
                repair="hyp config set engine.memory 1g",
            )
        time.sleep(_POLL_SECONDS)


def _explain(message: str) -> NotReady:
    """Return the error for a failed probe. Spark's message names the machine of the last attempt."""
    found = _MACHINE.search(message)
    machine, reason = (found[1], found[2]) if found else ("a machine of the cluster", message)
    if python_error := _PYTHON_ERROR.search(reason):
        reason = python_error[1]
    lines = [line.strip() for line in reason.strip().splitlines() if line.strip()]
    # Python ends with what went wrong, Java begins with it.
    said = (lines[-1] if python_error else lines[0]) if lines else "no message"
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return NotReady(
        f"the Spark executor on {machine} cannot run tasks: {said}. It needs {python} in its PATH, or hypaware "
        f"{__version__} in the Python that engine.spark names with {PYTHON}",
        kind="executor_unusable",
        repair="hyp config set engine.master 'local[*]'",
    )


def _not_shared(probe: Probe, unseen: Sequence[str], *, in_bucket: bool = False) -> NotReady:
    places = sorted(set(unseen))
    reason = probe.error or f"it does not share {' and '.join(places)} with this machine"
    fix = "Mount the same folder there on all machines of the cluster"
    if in_bucket:
        fix = "Each worker needs the keys of the bucket in its environment or on its machine"
    return NotReady(
        f"the Spark executor on {probe.machine} cannot write to the lake: {reason}. {fix}",
        kind="lake_not_shared",
        repair="hyp config set engine.master 'local[*]'",
    )
