"""A standalone Spark cluster on loopback, from the installed PySpark: a master and its workers."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hypaware.engine import jvm
from tests.support.processes import PATIENCE, eventually

_HOST = "127.0.0.1"


def can_hide_folders(folder: Path) -> bool:
    """Return whether this user may mount, in a namespace of its own."""
    folder.mkdir()
    tried = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", str(folder)]
    try:
        return subprocess.run(tried, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@contextmanager
def cluster(
    folder: Path,
    workers: int = 1,
    cores: int = 2,
    secret: str = "",
    hidden: Sequence[Path] = (),
    shared: Sequence[Path] = (),
    path: str | None = None,
) -> Iterator[str]:
    """Start a cluster and yield its address when every worker has registered. With a secret, it authenticates.

    Workers have `path` as PATH, by default that of the tests with their Python first. They and their executors see the
    folders in `hidden` as empty, except for those in `shared` below them, like machines that share only these.
    """
    folder.mkdir()
    path = path or f"{Path(getattr(sys, '_base_executable', sys.executable)).parent}{os.pathsep}{os.environ['PATH']}"
    properties = folder / "spark-defaults.conf"
    properties.write_text(f"spark.authenticate true\nspark.authenticate.secret {secret}\n" if secret else "")
    settings = ["--properties-file", str(properties)]
    with ExitStack() as running:
        running.callback(_end, _start(folder / "master.log", "master.Master", *settings))
        address = _told(folder / "master.log", r"Starting Spark master at (\S+)")
        logs = [folder / f"worker-{number}.log" for number in range(workers)]
        for log in logs:
            offer = ["--cores", str(cores), "--memory", "2g", "--work-dir", str(log.with_suffix("")), *settings]
            prefix = _hide(log.with_suffix(".mounts"), hidden, shared) if hidden else []
            running.callback(_end, _start(log, "worker.Worker", *offer, address, prefix=prefix, path=path))
        for log in logs:
            _told(log, r"(Successfully registered) with master")
        yield address


def _hide(folder: Path, hidden: Sequence[Path], shared: Sequence[Path]) -> list[str]:
    """Return the beginning of a command that runs with its own mounts."""
    steps = []
    for number, each in enumerate(shared):
        aside = folder / str(number)
        aside.mkdir(parents=True)
        steps.append(f"mount --bind {shlex.quote(str(each))} {shlex.quote(str(aside))}")
    steps += [f"mount -t tmpfs tmpfs {shlex.quote(str(each))}" for each in hidden]
    for number, each in enumerate(shared):
        quoted = shlex.quote(str(each))
        steps.append(f"mkdir -p {quoted} && mount --bind {shlex.quote(str(folder / str(number)))} {quoted}")
    return ["unshare", "-m", "sh", "-c", f'{" && ".join(steps)} && exec "$@"', "sh"]


def _start(
    log: Path, role: str, *arguments: str, prefix: Sequence[str] = (), path: str | None = None
) -> subprocess.Popen[bytes]:
    home = jvm.spark_jars_folder().parent
    command = [*prefix, str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}"]
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": _HOST}
    if path is not None:
        environment["PATH"] = path
    with open(log, "wb") as heard:
        return subprocess.Popen(
            [*command, "--host", _HOST, "--port", "0", "--webui-port", "0", *arguments],
            cwd=log.parent,
            env=environment,
            stdout=heard,
            stderr=heard,
        )


def _told(log: Path, words: str) -> str:
    eventually(lambda: re.search(words, log.read_text()))
    found = re.search(words, log.read_text())
    assert found
    return found[1]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(PATIENCE)
