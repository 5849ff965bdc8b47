"""The daemon as a process with its own engine: flushes, exports, config changes and shutdown."""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest

from hypaware.engine import client
from hypaware.home import Home, daemon_process
from tests.support import light_home
from tests.support.daemon_home import DaemonHome, count_delivered, last_status
from tests.support.delivery_home import key, write_config
from tests.support.delivery_jobs import rounds_of
from tests.support.processes import PATIENCE, eventually, kill, open_umask, read_umask
from tests.support.rows import rows


def next_round(home: Home, sink: str = "archive") -> str:
    return str(daemon_process.read_daemon_status(home).get("sinks", {}).get(sink, {}).get("next_round"))


def comes_later(home: Home, sink: str = "archive") -> bool:
    """Return whether the next round is after the last one. With a fast clock a round may exceed a minute."""
    reported = daemon_process.read_daemon_status(home)["sinks"][sink]
    return bool(reported["last_round"] <= reported["next_round"])


def let_rounds_pass(home: Home, count: int = 3) -> None:
    """Wait until `count` scheduled rounds have passed."""
    for _ in range(count):
        before = next_round(home)
        eventually(lambda seen=before: next_round(home) != seen)  # type: ignore[misc]


def test_rows_are_committed_and_delivered_automatically(daemon: DaemonHome, tmp_path: Path) -> None:
    light_home.append(daemon.home, rows(6))
    with daemon.running() as running:
        eventually(lambda: count_delivered(tmp_path / "archive") == 6)
        light_home.append(daemon.home, rows(4, start=6))
        eventually(lambda: count_delivered(tmp_path / "archive") == 10)
        # The rows arrive before the daemon reports them.
        eventually(lambda: daemon_process.read_daemon_status(daemon.home)["sinks"]["archive"]["last_status"] == "ok")
        assert daemon_process.read_daemon_status(daemon.home)["pid"] == running.process.pid
        eventually(lambda: comes_later(daemon.home))
        assert running.stop() == "\n", "the process imports neither Spark nor Arrow"
    assert daemon_process.read_daemon_status(daemon.home) == {}
    assert rounds_of(daemon.home)[0]["sinks"] == ["archive"]


def test_files_of_a_daemon_are_private_whatever_the_umask_of_its_shell(daemon: DaemonHome) -> None:
    with open_umask(), daemon.running() as running:
        assert read_umask(running.process.pid) == 0o077


@pytest.mark.hazard(91)
def test_rounds_without_new_rows_start_no_engine(daemon: DaemonHome) -> None:
    daemon.deliveries.recorded(claude=10)
    daemon.deliveries.delivered(key(), 10)
    with daemon.running() as running:
        let_rounds_pass(daemon.home)
        running.stop()
    assert rounds_of(daemon.home) == []
    assert not daemon.home.engine.exists()


def test_killed_engine_is_restarted_and_nothing_is_delivered_twice(daemon: DaemonHome, tmp_path: Path) -> None:
    (daemon.home.root / "die-archive").touch()
    light_home.append(daemon.home, rows(6))
    with daemon.running() as running:
        eventually(lambda: count_delivered(tmp_path / "archive") == 6)
        assert not (daemon.home.root / "die-archive").exists()
        assert "the engine died while running export" in running.log
        assert "retrying in 1 s" in running.log
        running.stop()
    assert len(rounds_of(daemon.home)) == 2


def test_waiting_sink_does_not_delay_another(daemon: DaemonHome, tmp_path: Path) -> None:
    daemon.deliveries.declare(slow=tmp_path / "slow", archive=tmp_path / "archive")
    (daemon.home.root / "wait-slow").touch()
    light_home.append(daemon.home, rows(6))
    with daemon.running():
        eventually(lambda: ["slow"] in [each["sinks"] for each in rounds_of(daemon.home)])
        eventually(lambda: count_delivered(tmp_path / "archive") == 6)
        let_rounds_pass(daemon.home)
        assert Counter(each["sinks"][0] for each in rounds_of(daemon.home))["slow"] == 1, (
            "rounds of a sink do not overlap"
        )
        assert count_delivered(tmp_path / "slow") == 0
        (daemon.home.root / "wait-slow").unlink()
        eventually(lambda: count_delivered(tmp_path / "slow") == 6)


@pytest.mark.hazard(29)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_shutdown_ends_every_wait_and_cancels_running_jobs(daemon: DaemonHome, number: int) -> None:
    (daemon.home.root / "wait-archive").touch()
    light_home.append(daemon.home, rows(6))
    with daemon.running() as running:
        eventually(lambda: rounds_of(daemon.home))
        running.process.send_signal(number)
        running.process.communicate(timeout=PATIENCE)
        assert running.process.returncode == 0
    eventually((daemon.home.root / "cancelled-archive").exists)
    eventually(lambda: client.engine_status(daemon.home)["jobs"] == [])


def test_second_daemon_is_refused_with_the_pid_of_the_first(daemon: DaemonHome) -> None:
    with daemon.running() as first:
        with daemon.started() as second:
            out, _ = second.process.communicate(timeout=PATIENCE)
        assert second.process.returncode == 3
        assert f"is already running (process {first.process.pid})" in out
        kill(first.process)
    assert daemon_process.running_daemon(daemon.home) is None
    with daemon.running() as again:
        again.stop()


def test_changed_config_takes_effect_immediately(daemon: DaemonHome, tmp_path: Path) -> None:
    (daemon.home.root / "wait-archive").touch()
    light_home.append(daemon.home, rows(6))
    with daemon.running() as running:
        eventually(lambda: rounds_of(daemon.home))
        daemon.deliveries.declare(other=tmp_path / "other")
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: count_delivered(tmp_path / "other") == 6)
        eventually((daemon.home.root / "cancelled-archive").exists)  # the round of the removed sink was cancelled
        eventually(lambda: list(daemon_process.read_daemon_status(daemon.home)["sinks"]) == ["other"])
        running.stop()


def test_invalid_config_is_logged_and_the_previous_one_stays_in_force(daemon: DaemonHome, tmp_path: Path) -> None:
    whole = daemon.home.config.read_text()
    with daemon.running() as running:
        write_config(daemon.home, whole + "[sinks.team]\nkind = 'forwrd'\n")
        eventually(lambda: "the config is invalid; the previous one stays in force" in running.log)
        assert "Did you mean forward?" in running.log
        let_rounds_pass(daemon.home)
        write_config(daemon.home, whole)
        eventually(lambda: "the config was reloaded" in running.log)
        light_home.append(daemon.home, rows(6))
        eventually(lambda: count_delivered(tmp_path / "archive") == 6)
        running.stop()


def test_daemon_ends_when_its_home_is_removed_and_does_not_recreate_it(daemon: DaemonHome) -> None:
    def removed() -> bool:
        """Remove the home; the daemon may be writing to it at the same time."""
        shutil.rmtree(daemon.home.root, ignore_errors=True)
        return not daemon.home.root.exists()

    with daemon.running() as running:
        eventually(removed)
        running.process.communicate(timeout=PATIENCE)
        assert running.process.returncode == 0
        assert "the home was removed" in running.log
    assert not daemon.home.root.exists()


def test_error_of_one_sink_is_logged_and_does_not_delay_another(daemon: DaemonHome, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder can be here")
    daemon.deliveries.declare(broken=tmp_path / "file" / "inside", archive=tmp_path / "archive")
    light_home.append(daemon.home, rows(6))
    with daemon.running() as running:
        eventually(lambda: count_delivered(tmp_path / "archive") == 6)
        eventually(lambda: last_status(daemon.home, "broken") == "failed")
        assert "broken: " in running.log
        running.stop()


@pytest.mark.hazard(87)
def test_sink_with_a_changed_destination_is_held_and_the_repair_is_logged(daemon: DaemonHome, tmp_path: Path) -> None:
    light_home.append(daemon.home, rows(6))
    light_home.flush(daemon.home)
    daemon.deliveries.delivered(key(), 4)
    daemon.deliveries.declare(archive=tmp_path / "elsewhere")
    with daemon.running() as running:
        eventually(lambda: last_status(daemon.home) == "held")
        assert "hyp export adopt archive" in running.log
        running.stop()
    assert not (tmp_path / "elsewhere").exists() or count_delivered(tmp_path / "elsewhere") == 0


def test_a_daemon_that_is_stopped_while_its_config_changes_ends(daemon: DaemonHome) -> None:
    with daemon.running() as running:
        eventually(lambda: daemon_process.read_daemon_status(daemon.home).get("sinks"))
        # When it next looks, it finds both: the new config and the signal.
        running.process.send_signal(signal.SIGSTOP)
        write_config(daemon.home, daemon.home.config.read_text() + '[flush]\ninterval = "2m"\n')
        running.process.send_signal(signal.SIGTERM)
        running.process.send_signal(signal.SIGCONT)
        running.process.communicate(timeout=PATIENCE)
        assert running.process.returncode == 0
        assert "the config was reloaded" in running.log
