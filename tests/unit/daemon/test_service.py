"""The daemon as a process, with an engine of its own: what is delivered when, and what nothing can stop."""

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
    """Rows that manifests count; a row in two of them is counted twice."""
    manifests = [json.loads(path.read_bytes()) for path in folder.rglob("_manifests/*.json")]
    ranges = Counter((each["source"], each["after"]) for each in manifests)
    assert not ranges or max(ranges.values()) == 1
    return sum(int(each["rows"]) for each in manifests)


def next_round(home: Home, sink: str = "archive") -> str:
    return str(condition.read(home).get("sinks", {}).get(sink, {}).get("next_round"))


def last_status(home: Home, sink: str = "archive") -> str:
    return str(condition.read(home).get("sinks", {}).get(sink, {}).get("last_status"))


def comes_later(home: Home, sink: str = "archive") -> bool:
    """Whether the next round lies behind the last one: the clock runs fast here, a round may outlast its minute."""
    told = condition.read(home)["sinks"][sink]
    return bool(told["last_round"] <= told["next_round"])


def let_rounds_pass(home: Home, count: int = 3) -> None:
    """Waits until the schedule has come so often."""
    for _ in range(count):
        before = next_round(home)
        eventually(lambda seen=before: next_round(home) != seen)  # type: ignore[misc]


def test_rows_are_committed_and_delivered_without_anybody_asking(daemon: DaemonOfTests, tmp_path: Path) -> None:
    light_life.append(daemon.home, rows(6))
    with daemon.running() as running:
        eventually(lambda: arrived(tmp_path / "archive") == 6)
        light_life.append(daemon.home, rows(4, start=6))
        eventually(lambda: arrived(tmp_path / "archive") == 10)
        # Rows are there before the daemon hears of it.
        eventually(lambda: condition.read(daemon.home)["sinks"]["archive"]["last_status"] == "ok")
        assert condition.read(daemon.home)["pid"] == running.process.pid
        eventually(lambda: comes_later(daemon.home))
        assert running.stop() == "\n", "it imports neither Spark nor Arrow"
    assert condition.read(daemon.home) == {}
    assert rounds_of(daemon.home)[0]["sinks"] == ["archive"]


@pytest.mark.hazard(91)
def test_rounds_with_nothing_new_start_no_engine(daemon: DaemonOfTests) -> None:
    daemon.standing.recorded(claude=10)
    daemon.standing.delivered(key(), 10)
    with daemon.running() as running:
        let_rounds_pass(daemon.home)
        running.stop()
    assert rounds_of(daemon.home) == []
    assert not daemon.home.engine.exists()


def test_a_killed_engine_is_started_again_and_nothing_is_delivered_twice(daemon: DaemonOfTests, tmp_path: Path) -> None:
    (daemon.home.root / "die-archive").touch()
    light_life.append(daemon.home, rows(6))
    with daemon.running() as running:
        eventually(lambda: arrived(tmp_path / "archive") == 6)
        assert not (daemon.home.root / "die-archive").exists()
        assert "the engine died in the middle of export" in running.log
        assert "again in 1 s" in running.log
        running.stop()
    assert len(rounds_of(daemon.home)) == 2


def test_a_sink_that_waits_holds_no_other(daemon: DaemonOfTests, tmp_path: Path) -> None:
    daemon.standing.declare(slow=tmp_path / "slow", archive=tmp_path / "archive")
    (daemon.home.root / "wait-slow").touch()
    light_life.append(daemon.home, rows(6))
    with daemon.running():
        eventually(lambda: ["slow"] in [each["sinks"] for each in rounds_of(daemon.home)])
        eventually(lambda: arrived(tmp_path / "archive") == 6)
        let_rounds_pass(daemon.home)
        assert Counter(each["sinks"][0] for each in rounds_of(daemon.home))["slow"] == 1, "one round at a time"
        assert arrived(tmp_path / "slow") == 0
        (daemon.home.root / "wait-slow").unlink()
        eventually(lambda: arrived(tmp_path / "slow") == 6)


@pytest.mark.hazard(29)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_shutdown_breaks_every_wait_and_cancels_what_runs(daemon: DaemonOfTests, number: int) -> None:
    (daemon.home.root / "wait-archive").touch()
    light_life.append(daemon.home, rows(6))
    with daemon.running() as running:
        eventually(lambda: rounds_of(daemon.home))
        running.process.send_signal(number)
        running.process.communicate(timeout=60)
        assert running.process.returncode == 0
    eventually((daemon.home.root / "cancelled-archive").exists)
    eventually(lambda: client.status(daemon.home)["jobs"] == [])


def test_a_second_daemon_of_a_home_is_told_who_the_first_is(daemon: DaemonOfTests) -> None:
    with daemon.running() as first:
        with daemon.started() as second:
            out, _ = second.process.communicate(timeout=60)
        assert second.process.returncode == 3
        assert f"runs already, as process {first.process.pid}" in out
        kill(first.process)
    assert instance.running(daemon.home) is None
    with daemon.running() as again:
        again.stop()


def test_a_new_config_takes_effect_at_once(daemon: DaemonOfTests, tmp_path: Path) -> None:
    (daemon.home.root / "wait-archive").touch()
    light_life.append(daemon.home, rows(6))
    with daemon.running() as running:
        eventually(lambda: rounds_of(daemon.home))
        daemon.standing.declare(other=tmp_path / "other")
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: arrived(tmp_path / "other") == 6)
        eventually((daemon.home.root / "cancelled-archive").exists)  # the round of the sink that is gone was ended
        eventually(lambda: list(condition.read(daemon.home)["sinks"]) == ["other"])
        running.stop()


def test_a_broken_config_leaves_the_old_one_in_force_and_is_said_aloud(daemon: DaemonOfTests, tmp_path: Path) -> None:
    whole = daemon.home.config.read_text()
    with daemon.running() as running:
        write_config(daemon.home, whole + "[sinks.team]\nkind = 'forwrd'\n")
        eventually(lambda: "the config is broken, so the old one stays in force" in running.log)
        assert "Did you mean forward?" in running.log
        let_rounds_pass(daemon.home)
        write_config(daemon.home, whole)
        eventually(lambda: "the config was read anew" in running.log)
        light_life.append(daemon.home, rows(6))
        eventually(lambda: arrived(tmp_path / "archive") == 6)
        running.stop()


def test_a_removed_home_ends_its_daemon_and_is_not_made_again(daemon: DaemonOfTests) -> None:
    def removed() -> bool:
        """It may be writing there in this moment."""
        shutil.rmtree(daemon.home.root, ignore_errors=True)
        return not daemon.home.root.exists()

    with daemon.running() as running:
        eventually(removed)
        running.process.communicate(timeout=60)
        assert running.process.returncode == 0
        assert "the home is gone" in running.log
    assert not daemon.home.root.exists()


def test_trouble_with_one_sink_is_said_and_holds_no_other(daemon: DaemonOfTests, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder can be here")
    daemon.standing.declare(broken=tmp_path / "file" / "inside", archive=tmp_path / "archive")
    light_life.append(daemon.home, rows(6))
    with daemon.running() as running:
        eventually(lambda: arrived(tmp_path / "archive") == 6)
        eventually(lambda: last_status(daemon.home, "broken") == "failed")
        assert "broken: " in running.log
        running.stop()


@pytest.mark.hazard(87)
def test_a_sink_that_points_elsewhere_is_held_and_the_way_out_is_told(daemon: DaemonOfTests, tmp_path: Path) -> None:
    light_life.append(daemon.home, rows(6))
    light_life.flush(daemon.home)
    daemon.standing.delivered(key(), 4)
    daemon.standing.declare(archive=tmp_path / "elsewhere")
    with daemon.running() as running:
        eventually(lambda: last_status(daemon.home) == "held")
        assert "hyp export adopt archive" in running.log
        running.stop()
    assert not (tmp_path / "elsewhere").exists() or arrived(tmp_path / "elsewhere") == 0
