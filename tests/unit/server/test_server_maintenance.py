"""The server's maintenance: if something is due, concurrently with requests."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from hypaware import config
from hypaware.config import LiveConfig, MaintainConfig
from hypaware.engine import client
from hypaware.home import Home, daemon_process
from hypaware.server import auth
from hypaware.server.health import log
from hypaware.server.run import server_reason_to_wait
from tests.support import light_home, processes
from tests.support.delivery_jobs import maintenances_of
from tests.support.light_lake import read_lake
from tests.support.processes import PATIENCE, eventually
from tests.support.receiver import Client, enrol
from tests.support.rows import of_age, rows

LONG_AGO, TODAY = of_age(90), of_age(0)
DUE = '[retention]\ndefault_days = 30\n[maintain]\ninterval = "1m"\nbudget = "90s"\n'

# A minute between checks takes a fifth of a second, and the engine runs light jobs.
_SERVER = """
import asyncio, logging, sys, time

from hypaware.engine.background import TaskClock
from hypaware.home import Home
from hypaware.engine.launcher import Engine
from hypaware.server import run
from hypaware import config





FASTER = 300

class Quick(TaskClock):
    def monotonic(self):
        return FASTER * time.monotonic()
    async def sleep(self, seconds):
        await asyncio.sleep(max(0.0, seconds) / FASTER)

logging.basicConfig(filename=sys.argv[1], level=logging.INFO, format="%(message)s")
home = Home.from_environment()
engine = Engine(home, jobs="tests.support.delivery_jobs", check=lambda: None)
say = lambda line: print(line, flush=True)
run.run_server(home, run.ServerOptions(port=0), say, engine, Quick())
print(*sorted({"pyspark", "py4j", "pyarrow"} & set(sys.modules)))
"""


@dataclass(frozen=True)
class Running:
    url: str
    process: subprocess.Popen[str]
    log_file: Path

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    @property
    def metrics(self) -> str:
        return Client(self.url).ask("GET", "/metrics").body.decode()

    def stop(self) -> str:
        """Ask the server to end, require a clean exit, and return its last output."""
        self.process.send_signal(signal.SIGTERM)
        out, _ = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0
        return out


@contextmanager
def server(home: Home, folder: Path) -> Iterator[Running]:
    log_file = folder / "server.log"
    try:
        with processes.running(_SERVER, home, log_file) as process:
            assert process.stdout
            url = process.stdout.readline().removeprefix("listening on ").strip()
            yield Running(url, process, log_file)
    finally:
        client.stop_engine(home)


def declare(home: Home, text: str) -> None:
    home.root.mkdir(exist_ok=True)
    home.config.write_text(f"version = 1\n{text}")
    config.load(home)


def keep(home: Home, old: int, young: int = 0) -> None:
    light_home.append(home, rows(old, message_created_at=LONG_AGO) + rows(young, start=old, message_created_at=TODAY))
    light_home.flush(home)


def kept(home: Home) -> int:
    return len(read_lake(home, light_home.DATASET))


def test_expired_days_are_removed_automatically_even_if_the_engine_dies_once(home: Home, tmp_path: Path) -> None:
    declare(home, DUE)
    keep(home, 2, young=3)
    (home.root / "die-maintain").touch()
    with server(home, tmp_path) as running:
        eventually(lambda: 'hyp_server_maintenances_total{status="ok"} 1.0' in running.metrics)
        assert kept(home) == 3
        assert 'hyp_server_maintenances_total{status="failed"} 1.0' in running.metrics
        assert "maintenance failed: the engine died while running maintain" in running.log
        assert "ai_gateway_messages: dropped 2 rows of 1 day before" in running.log
        assert running.stop() == "\n", "the process imports neither Spark nor Arrow"
    assert maintenances_of(home) == [{"dataset": None, "budget": 90.0}] * 2


def test_server_accepts_batches_during_maintenance_and_cancels_it_on_shutdown(home: Home, tmp_path: Path) -> None:
    declare(home, DUE)
    keep(home, 2)
    (home.root / "wait-maintain").touch()
    with server(home, tmp_path) as running:
        eventually(lambda: maintenances_of(home))
        token, _ = auth.create_token(home)
        assert enrol(running.url, token, "gw-1").deliver(0, 5).status == 202
        running.stop()
        eventually(lambda: (home.root / "cancelled-maintain").exists())
        assert "the server has ended" in running.log
    assert (len(maintenances_of(home)), kept(home)) == (1, 2)


def test_server_leaves_maintenance_to_a_daemon_in_the_same_home(home: Home, tmp_path: Path) -> None:
    declare(home, DUE)
    keep(home, 2)
    with ExitStack() as daemon:
        daemon.enter_context(daemon_process.hold_daemon_lock(home))
        with server(home, tmp_path) as running:
            eventually(lambda: "the daemon that runs in this home does the maintenance" in running.log)
            assert (maintenances_of(home), kept(home)) == ([], 2)
            daemon.close()
            eventually(lambda: kept(home) == 0)


def test_server_ignores_the_battery_and_respects_quiet_hours(home: Home) -> None:
    night, noon = datetime(2026, 11, 15, 2).astimezone(), datetime(2026, 11, 15, 12).astimezone()
    settings = MaintainConfig(quiet_hours="22:00-07:00", on_battery=False)
    assert (
        server_reason_to_wait(home, settings, night) == "maintenance waits for the end of the quiet hours (22:00-07:00)"
    )
    assert server_reason_to_wait(home, settings, noon) is None


def test_changed_config_takes_effect_and_an_invalid_one_is_logged_once(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    declare(home, '[maintain]\ninterval = "1m"\n')
    settings = LiveConfig(home, log)
    declare(home, '[maintain]\ninterval = "2m"\n')
    assert settings().maintain.interval == 120
    home.config.write_text("version = ")
    assert [settings().maintain.interval, settings().maintain.interval] == [120, 120]
    assert caplog.text.count("the config is invalid; the previous one stays in force") == 1
    declare(home, '[maintain]\ninterval = "off"\n')
    assert settings().maintain.interval == 0
