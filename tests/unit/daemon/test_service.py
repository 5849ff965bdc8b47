"""The daemon as a process with its own engine: flushes, exports, config changes and shutdown."""

from __future__ import annotations

import json
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hypaware.daemon import condition, instance
from hypaware.engine import client
from hypaware.home import Home
from tests import light_life
from tests.delivery_jobs import rounds_of
from tests.processes import eventually, kill
from tests.rows import rows
from tests.standing_home import key, write_config

if TYPE_CHECKING:
    from tests.unit.daemon.conftest import DaemonOfTests


def arrived(folder: Path) -> int:
    """Count the rows in the manifests; a row in two manifests counts twice."""
    manifests = [json.loads(path.read_bytes()) for path in folder.rglob("_manifests/*.json")]
    ranges = Counter((each["source"], each["after"]) for each in manifests)
    assert not ranges or max(ranges.values()) == 1
    return sum(int(each["rows"]) for each in manifests)


def next_round(home: Home, sink: str = "archive") -> str:
    return str(condition.read(home).get("sinks", {}).get(sink, {}).get("next_round"))


def last_status(home: Home, sink: str = "archive") -> str:
    return str(condition.read(home).get("sinks", {}).get(sink, {}).get("last_status"))


def comes_later(home: Home, sink: str = "archive") -> bool:
    """Return whether the next round is after the last one. With a fast clock a round may exceed a minute."""
    told = condition.read(home)["sinks"][sink]
    return bool(told["last_round"] <= told["next_round"])


def let_rounds_pass(home: Home, count: int = 3) -> None:
    """Wait until `count` scheduled rounds have passed."""
    for _ in range(count):
        before = next_round(home)
        eventually(lambda seen=before: next_round(home) != seen)  # type: ignore[misc]


def test_rows_are_committed_and_delivered_automatically(daemon: DaemonOfTests, tmp_path: Path) -> None:
    light_life.append(daemon.home, rows(6))
    with daemon.running() as running:
        eventually(lambda: arrived(tmp_path / "archive") == 6)
        light_life.append(daemon.home, rows(4, start=6))
        eventually(lambda: arrived(tmp_path / "archive") == 10)
        # The rows arrive before the daemon reports them.
        eventually(lambda: condition.read(daemon.home)["sinks"]["archive"]["last_status"] == "ok")
        assert condition.read(daemon.home)["pid"] == running.process.pid
        eventually(lambda: comes_later(daemon.home))
        assert running.stop() == "\n", "the process imports neither Spark nor Arrow"
    assert condition.read(daemon.home) == {}
    assert rounds_of(daemon.home)[0]["sinks"] == ["archive"]


@pytest.mark.hazard(91)
def test_rounds_without_new_rows_start_no_engine(daemon: DaemonOfTests) -> None:
    daemon.standing.recorded(claude=10)
    daemon.standing.delivered(key(), 10)
    with daemon.running() as running:
        let_rounds_pass(daemon.home)
        running.stop()
    assert rounds_of(daemon.home) == []
    assert not daemon.home.engine.exists()


def test_killed_engine_is_restarted_and_nothing_is_delivered_twice(daemon: DaemonOfTests, tmp_path: Path) -> None:
    (daemon.home.root / "die-archive").touch()
    light_life.append(daemon.home, rows(6))
    with daemon.running() as running:
        eventually(lambda: arrived(tmp_path / "archive") == 6)
        assert not (daemon.home.root / "die-archive").exists()
        assert "the engine died while running export" in running.log
        assert "retrying in 1 s" in running.log
        running.stop()
    assert len(rounds_of(daemon.home)) == 2


def test_waiting_sink_does_not_delay_another(daemon: DaemonOfTests, tmp_path: Path) -> None:
    daemon.standing.declare(slow=tmp_path / "slow", archive=tmp_path / "archive")
    (daemon.home.root / "wait-slow").touch()
    light_life.append(daemon.home, rows(6))
    with daemon.running():
        eventually(lambda: ["slow"] in [each["sinks"] for each in rounds_of(daemon.home)])
        eventually(lambda: arrived(tmp_path / "archive") == 6)
        let_rounds_pass(daemon.home)
        assert Counter(each["sinks"][0] for each in rounds_of(daemon.home))["slow"] == 1, (
            "rounds of a sink do not overlap"
        )
        assert arrived(tmp_path / "slow") == 0
        (daemon.home.root / "wait-slow").unlink()
        eventually(lambda: arrived(tmp_path / "slow") == 6)


@pytest.mark.hazard(29)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_shutdown_ends_every_wait_and_cancels_running_jobs(daemon: DaemonOfTests, number: int) -> None:
    (daemon.home.root / "wait-archive").touch()
    light_life.append(daemon.home, rows(6))
    with daemon.running() as running:
        eventually(lambda: rounds_of(daemon.home))
        running.process.send_signal(number)
        running.process.communicate(timeout=60)
        assert running.process.returncode == 0
    eventually((daemon.home.root / "cancelled-archive").exists)
    eventually(lambda: client.status(daemon.home)["jobs"] == [])


def test_second_daemon_is_refused_with_the_pid_of_the_first(daemon: DaemonOfTests) -> None:
    with daemon.running() as first:
        with daemon.started() as second:
            out, _ = second.process.communicate(timeout=60)
        assert second.process.returncode == 3
        assert f"is already running (process {first.process.pid})" in out
        kill(first.process)
    assert instance.running(daemon.home) is None
    with daemon.running() as again:
        again.stop()


def test_changed_config_takes_effect_immediately(daemon: DaemonOfTests, tmp_path: Path) -> None:
    (daemon.home.root / "wait-archive").touch()
    light_life.append(daemon.home, rows(6))
    with daemon.running() as running:
        eventually(lambda: rounds_of(daemon.home))
        daemon.standing.declare(other=tmp_path / "other")
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: arrived(tmp_path / "other") == 6)
        eventually((daemon.home.root / "cancelled-archive").exists)  # the round of the removed sink was cancelled
        eventually(lambda: list(condition.read(daemon.home)["sinks"]) == ["other"])
        running.stop()


def test_invalid_config_is_logged_and_the_previous_one_stays_in_force(daemon: DaemonOfTests, tmp_path: Path) -> None:
    whole = daemon.home.config.read_text()
    with daemon.running() as running:
        write_config(daemon.home, whole + "[sinks.team]\nkind = 'forwrd'\n")
        eventually(lambda: "the config is invalid; the previous one stays in force" in running.log)
        assert "Did you mean forward?" in running.log
        let_rounds_pass(daemon.home)
        write_config(daemon.home, whole)
        eventually(lambda: "the config was reloaded" in running.log)
        light_life.append(daemon.home, rows(6))
        eventually(lambda: arrived(tmp_path / "archive") == 6)
        running.stop()


def test_daemon_ends_when_its_home_is_removed_and_does_not_recreate_it(daemon: DaemonOfTests) -> None:
    def removed() -> bool:
        """Remove the home; the daemon may be writing to it at the same time."""
        shutil.rmtree(daemon.home.root, ignore_errors=True)
        return not daemon.home.root.exists()

    with daemon.running() as running:
        eventually(removed)
        running.process.communicate(timeout=60)
        assert running.process.returncode == 0
        assert "the home was removed" in running.log
    assert not daemon.home.root.exists()


def test_error_of_one_sink_is_logged_and_does_not_delay_another(daemon: DaemonOfTests, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder can be here")
    daemon.standing.declare(broken=tmp_path / "file" / "inside", archive=tmp_path / "archive")
    light_life.append(daemon.home, rows(6))
    with daemon.running() as running:
        eventually(lambda: arrived(tmp_path / "archive") == 6)
        eventually(lambda: last_status(daemon.home, "broken") == "failed")
        assert "broken: " in running.log
        running.stop()


@pytest.mark.hazard(87)
def test_sink_with_a_changed_destination_is_held_and_the_repair_is_logged(
    daemon: DaemonOfTests, tmp_path: Path
) -> None:
    light_life.append(daemon.home, rows(6))
    light_life.flush(daemon.home)
    daemon.standing.delivered(key(), 4)
    daemon.standing.declare(archive=tmp_path / "elsewhere")
    with daemon.running() as running:
        eventually(lambda: last_status(daemon.home) == "held")
        assert "hyp export adopt archive" in running.log
        running.stop()
    assert not (tmp_path / "elsewhere").exists() or arrived(tmp_path / "elsewhere") == 0
