from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from hypaware.daemon import instance
from hypaware.engine import client
from hypaware.home import Home
from tests import processes
from tests.standing_home import StandingHome

# A minute of a schedule takes a fifth of a second. At exit the process prints the heavy modules that it has imported.
_DAEMON = """
import asyncio, logging, sys, time
from datetime import UTC, datetime, timedelta

from hypaware.daemon import service
from hypaware.daemon.clock import Clock
from hypaware.engine.launch import Engine
from hypaware.errors import HypError
from hypaware.home import Home

FASTER = 300

class Quick(Clock):
    def __init__(self):
        self.began, self.start = datetime.now(UTC), time.monotonic()
    def now(self):
        return self.began + timedelta(seconds=self.monotonic() - self.start)
    def monotonic(self):
        return self.start + FASTER * (time.monotonic() - self.start)
    async def sleep(self, seconds):
        await asyncio.sleep(max(0.0, seconds) / FASTER)

logging.basicConfig(filename=sys.argv[1], level=logging.INFO, format="%(message)s")
home = Home.from_environment()
try:
    service.run(home, Engine(home, jobs=sys.argv[2], check=lambda: None), Quick())
except HypError as error:
    print(error.message)
    sys.exit(error.exit_code)
print(*sorted({"pyspark", "py4j", "pyarrow", "obstore", "pyiceberg"} & set(sys.modules)))
"""


@dataclass(frozen=True)
class Daemon:
    process: subprocess.Popen[str]
    log_file: Path

    @property
    def log(self) -> str:
        return self.log_file.read_text() if self.log_file.exists() else ""

    def stop(self) -> str:
        """Ask the daemon to end, require a clean exit, and return its output."""
        self.process.send_signal(signal.SIGTERM)
        out, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 0
        return out


@dataclass(frozen=True)
class DaemonOfTests:
    """A home whose daemon runs light jobs with a fast clock."""

    standing: StandingHome
    folder: Path
    jobs: str = "tests.delivery_jobs"

    @property
    def home(self) -> Home:
        return self.standing.home

    @contextmanager
    def running(self) -> Iterator[Daemon]:
        with self.started() as daemon:
            processes.eventually(lambda: instance.running(self.home) == daemon.process.pid)
            yield daemon

    @contextmanager
    def started(self) -> Iterator[Daemon]:
        log_file = self.folder / "daemon.log"
        with processes.running(_DAEMON, self.home, log_file, self.jobs) as process:
            yield Daemon(process, log_file)


@pytest.fixture
def daemon(home: Home, tmp_path: Path) -> Iterator[DaemonOfTests]:
    found = DaemonOfTests(StandingHome(home), tmp_path)
    found.standing.declare(archive=tmp_path / "archive")
    yield found
    client.stop(home)
