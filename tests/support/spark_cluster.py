"""A standalone Spark cluster on loopback, from the installed PySpark: a master and its workers."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hypaware.engine import jvm
from tests.support.processes import PATIENCE, eventually

_HOST = "127.0.0.1"


@contextmanager
def cluster(folder: Path, workers: int = 1, cores: int = 2, secret: str = "") -> Iterator[str]:
    """Start a cluster and yield its address when every worker has registered. With a secret, it authenticates."""
    folder.mkdir()
    properties = folder / "spark-defaults.conf"
    properties.write_text(f"spark.authenticate true\nspark.authenticate.secret {secret}\n" if secret else "")
    settings = ["--properties-file", str(properties)]
    with ExitStack() as running:
        running.callback(_end, _start(folder / "master.log", "master.Master", *settings))
        address = _told(folder / "master.log", r"Starting Spark master at (\S+)")
        logs = [folder / f"worker-{number}.log" for number in range(workers)]
        for log in logs:
            offer = ["--cores", str(cores), "--memory", "2g", "--work-dir", str(log.with_suffix("")), *settings]
            running.callback(_end, _start(log, "worker.Worker", *offer, address))
        for log in logs:
            _told(log, r"(Successfully registered) with master")
        yield address


def _start(log: Path, role: str, *arguments: str) -> subprocess.Popen[bytes]:
    home = jvm.spark_jars_folder().parent
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}"]
    with open(log, "wb") as heard:
        return subprocess.Popen(
            [*command, "--host", _HOST, "--port", "0", "--webui-port", "0", *arguments],
            env={**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": _HOST},
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
