"""The server keeps its lake in shape as a daemon does: when something is due, and beside the requests."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from hypaware import config as configuration
from hypaware.config import MaintainConfig
from hypaware.daemon import instance
from hypaware.engine import client
from hypaware.home import Home
from hypaware.server import tokens
from hypaware.server.settings import Settings
from hypaware.server.upkeep import why_not_now
from tests import light_life, processes
from tests.delivery_jobs import maintenances_of
from tests.light_lake import read_lake
from tests.processes import eventually
from tests.rows import of_age, rows
from tests.unit.server.serving import Client, enrol

LONG_AGO, TODAY = of_age(90), of_age(0)
DUE = '[retention]\ndefault_days = 30\n[maintain]\ninterval = "1m"\nbudget = "90s"\n'

# A minute of its looks takes a fifth of a second, and its engine has the light jobs.
_SERVER = """
import asyncio, logging, sys, time

from hypaware import config
from hypaware.daemon.clock import Clock
from hypaware.engine.launch import Engine
from hypaware.home import Home
from hypaware.server import run as process

FASTER = 300

class Quick(Clock):
    def monotonic(self):
        return FASTER * time.monotonic()
    async def sleep(self, seconds):
        await asyncio.sleep(max(0.0, seconds) / FASTER)

logging.basicConfig(filename=sys.argv[1], level=logging.INFO, format="%(message)s")
home = Home.from_environment()
engine = Engine(home, jobs="tests.delivery_jobs", check=lambda: None)
say = lambda line: print(line, flush=True)
process.run(home, config.load(home), process.Options(port=0), say, engine, Quick())
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
        """Asks it to end; it must do so in peace. What it printed last."""
        self.process.send_signal(signal.SIGTERM)
        out, _ = self.process.communicate(timeout=60)
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
        client.stop(home)


def declare(home: Home, text: str) -> None:
    home.root.mkdir(exist_ok=True)
    home.config.write_text(f"version = 1\n{text}")
    configuration.load(home)


def keep(home: Home, old: int, young: int = 0) -> None:
    light_life.append(home, rows(old, message_created_at=LONG_AGO) + rows(young, start=old, message_created_at=TODAY))
    light_life.flush(home)


def kept(home: Home) -> int:
    return len(read_lake(home, light_life.DATASET))


def test_days_that_are_over_go_without_anybody_asking_though_an_engine_dies_at_it(home: Home, tmp_path: Path) -> None:
    declare(home, DUE)
    keep(home, 2, young=3)
    (home.root / "die-maintain").touch()
    with server(home, tmp_path) as running:
        eventually(lambda: 'hyp_server_maintenances_total{status="ok"} 1.0' in running.metrics)
        assert kept(home) == 3
        assert 'hyp_server_maintenances_total{status="failed"} 1.0' in running.metrics
        assert "the lake was not maintained: the engine died in the middle of maintain" in running.log
        assert "ai_gateway_messages: dropped 2 rows of 1 day before" in running.log
        assert running.stop() == "\n", "it imports neither Spark nor Arrow"
    assert maintenances_of(home) == [{"dataset": None, "budget": 90.0}] * 2


def test_it_takes_batches_meanwhile_and_breaks_off_at_its_end(home: Home, tmp_path: Path) -> None:
    declare(home, DUE)
    keep(home, 2)
    (home.root / "wait-maintain").touch()
    with server(home, tmp_path) as running:
        eventually(lambda: maintenances_of(home))
        token, _ = tokens.create(home)
        assert enrol(running.url, token, "gw-1").deliver(0, 5).status == 202
        running.stop()
        eventually(lambda: (home.root / "cancelled-maintain").exists())
        assert "the server ends" in running.log
    assert (len(maintenances_of(home)), kept(home)) == (1, 2)


def test_a_daemon_of_the_same_home_does_it_alone(home: Home, tmp_path: Path) -> None:
    declare(home, DUE)
    keep(home, 2)
    with ExitStack() as daemon:
        daemon.enter_context(instance.only_one(home))
        with server(home, tmp_path) as running:
            eventually(lambda: "maintenance is left to the daemon that runs in this home" in running.log)
            assert (maintenances_of(home), kept(home)) == ([], 2)
            daemon.close()
            eventually(lambda: kept(home) == 0)


def test_the_battery_is_no_reason_to_wait_and_quiet_hours_are(home: Home) -> None:
    night, noon = datetime(2026, 11, 15, 2).astimezone(), datetime(2026, 11, 15, 12).astimezone()
    settings = MaintainConfig(quiet_hours="22:00-07:00", on_battery=False)
    assert why_not_now(home, settings, night) == "maintenance waits for the end of the quiet hours (22:00-07:00)"
    assert why_not_now(home, settings, noon) is None


def test_a_new_config_counts_at_once_and_a_broken_one_is_told_once(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    declare(home, '[maintain]\ninterval = "1m"\n')
    settings = Settings(home, configuration.load(home))
    declare(home, '[maintain]\ninterval = "2m"\n')
    assert settings().maintain.interval == 120
    home.config.write_text("version = ")
    assert [settings().maintain.interval, settings().maintain.interval] == [120, 120]
    assert caplog.text.count("the config is broken, so the old one stays in force") == 1
    declare(home, '[maintain]\ninterval = "off"\n')
    assert settings().maintain.interval == 0
