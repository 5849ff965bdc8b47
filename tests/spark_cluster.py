"""A standalone Spark cluster on the loopback, from the PySpark that is installed: one master, one worker."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hypaware.engine import spark_home
from tests.processes import eventually

_HOST = "127.0.0.1"
_SECONDS = 60


@contextmanager
def cluster(folder: Path, cores: int = 2) -> Iterator[str]:
    """Its address, when the worker has found the master."""
    with ExitStack() as running:
        master = _start(folder, "master.Master", [])
        running.callback(_end, master)
        address = _told(folder, "master", r"Starting Spark master at (\S+)")
        offer = ["--cores", str(cores), "--memory", "2g", "--work-dir", str(folder / "work"), address]
        worker = _start(folder, "worker.Worker", offer)
        running.callback(_end, worker)
        _told(folder, "worker", r"(Successfully registered) with master")
        yield address


def _start(folder: Path, role: str, arguments: list[str]) -> subprocess.Popen[bytes]:
    home = spark_home.spark_jars().parent
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": _HOST}
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}"]
    with open(_log(folder, role.partition(".")[0]), "wb") as log:
        return subprocess.Popen(
            [*command, "--host", _HOST, "--port", "0", "--webui-port", "0", *arguments],
            env=environment,
            stdout=log,
            stderr=log,
        )


def _told(folder: Path, role: str, words: str) -> str:
    log = _log(folder, role)
    eventually(lambda: re.search(words, log.read_text()))
    found = re.search(words, log.read_text())
    assert found
    return found[1]


def _log(folder: Path, role: str) -> Path:
    return folder / f"{role}.log"


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(_SECONDS)
