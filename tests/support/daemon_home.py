"""A home whose daemon runs as a process with light engine jobs and a fast clock."""

from __future__ import annotations

import json
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypaware.daemon import lifecycle
from hypaware.home import Home, daemon_process
from tests.support import processes
from tests.support.delivery_home import DeliveryHome
from tests.support.processes import PATIENCE, eventually

# Without a client the gateway does not listen.
NO_CLIENTS = "version = 1\n[clients.claude]\nenabled = false\n[clients.codex]\nenabled = false\n"

# A minute of a schedule takes a fifth of a second. At exit the process prints the heavy modules that it has imported.
_DAEMON = """
import asyncio, logging, sys, time
from datetime import UTC, datetime, timedelta

from hypaware.engine.background import TaskClock
from hypaware.home import Home
from hypaware.daemon import service
from hypaware.engine.launcher import Engine
from hypaware.errors import HypError

FASTER = 300

class FastClock(TaskClock):
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
    service.run_daemon(home, Engine(home, jobs=sys.argv[2], check=lambda: None), FastClock())
except HypError as error:
    print(error.message)
    sys.exit(error.exit_code)
heavy = {"pyspark", "py4j", "pyarrow", "obstore", "pyiceberg", "jinja2", "hypaware.page", "google.protobuf"}
print(*sorted(heavy & set(sys.modules)))
"""


@dataclass(frozen=True)
class RunningDaemon:
    process: subprocess.Popen[str]
    log_file: Path

    @property
    def log(self) -> str:
        return self.log_file.read_text() if self.log_file.exists() else ""

    def stop(self) -> str:
        """Ask the daemon to end, require a clean exit, and return its output."""
        self.process.send_signal(signal.SIGTERM)
        out, _ = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0
        return out


@dataclass(frozen=True)
class DaemonHome:
    """A home whose daemon runs light jobs with a fast clock."""

    deliveries: DeliveryHome
    folder: Path
    jobs: str = "tests.support.delivery_jobs"

    @property
    def home(self) -> Home:
        return self.deliveries.home

    @contextmanager
    def running(self, crash_at: str | None = None) -> Iterator[RunningDaemon]:
        with self.started(crash_at) as daemon:
            # A daemon that holds its lock may not have replaced the status file of a killed one yet.
            processes.eventually(lambda: lifecycle.ready_pid(self.home) == daemon.process.pid)
            yield daemon

    @contextmanager
    def started(self, crash_at: str | None = None) -> Iterator[RunningDaemon]:
        log_file = self.folder / "daemon.log"
        with processes.running(_DAEMON, self.home, log_file, self.jobs, crash_at=crash_at) as process:
            yield RunningDaemon(process, log_file)


def daemon_part(home: Home, part: str) -> dict[str, Any]:
    """Return one part of the daemon's status file."""
    found: dict[str, Any] = daemon_process.read_daemon_status(home).get(part, {})
    return found


def last_status(home: Home, sink: str = "archive") -> str:
    return str(daemon_process.read_daemon_status(home).get("sinks", {}).get(sink, {}).get("last_status"))


def wait_for_checks(home: Home, part: str, count: int = 3) -> None:
    """Wait until a periodic task has announced its next check `count` times."""
    for _ in range(count):
        before = daemon_part(home, part).get("next_look")
        eventually(lambda seen=before: daemon_part(home, part).get("next_look") not in (None, seen))  # type: ignore[misc]


def count_delivered(folder: Path) -> int:
    """Count the rows in the manifests; a row in two manifests counts twice."""
    manifests = [json.loads(path.read_bytes()) for path in folder.rglob("_manifests/*.json")]
    ranges = Counter((each["source"], each["after"]) for each in manifests)
    assert not ranges or max(ranges.values()) == 1
    return sum(int(each["rows"]) for each in manifests)
