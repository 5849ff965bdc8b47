"""`hyp daemon`: status, stop and messages of a real daemon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from hypaware.cli import daemon as cli_daemon
from hypaware.home import Home, daemon_process
from hypaware.spool.writer import Spool
from tests.support.command import HYP
from tests.support.processes import PATIENCE, eventually
from tests.support.rows import DATASET, rows

Hyp = Callable[..., tuple[int, str, str]]


@contextmanager
def daemon(home: Home) -> Iterator[subprocess.Popen[str]]:
    """Run a real daemon without sinks, which needs no engine, on a free port."""
    home.root.mkdir(mode=0o700, exist_ok=True)
    if not home.config.exists():
        home.config.write_text('version = 1\n[gateway]\nlisten = "127.0.0.1:0"\n')
    with subprocess.Popen(
        [HYP, "daemon", "run"],
        env={**os.environ, "HYP_HOME": str(home.root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            eventually(lambda: daemon_process.running_daemon(home) == process.pid or process.poll() is not None)
            yield process
        finally:
            process.kill()


def test_a_stopped_daemon_is_reported_with_the_command_that_starts_it(hyp: Hyp, home: Home) -> None:
    code, out, _ = hyp("daemon", "status", "--json")
    report = json.loads(out)
    assert (code, report["state"], report["error"]["kind"]) == (3, "stopped", "daemon_not_running")
    assert report["error"]["repair"] == ["hyp daemon start"]
    assert hyp("daemon", "status")[0] == 3
    code, out, _ = hyp("daemon", "stop", "--json")
    assert (code, json.loads(out)) == (0, {"stopped": False, "spool": {"rows": 0, "segments": 0}})
    assert not home.root.exists()


def test_a_running_daemon_is_reported_and_stopped(hyp: Hyp, home: Home) -> None:
    with daemon(home) as process:
        eventually(lambda: daemon_process.read_daemon_status(home))
        code, out, _ = hyp("daemon", "status", "--json")
        report = json.loads(out)
        assert (code, report["state"], report["pid"], report["sinks"]) == (0, "running", process.pid, {})
        assert f"{process.pid}" in hyp("daemon", "status")[1]
        result = {"stopped": True, "spool": {"rows": 0, "segments": 0}}
        assert json.loads(hyp("daemon", "stop", "--json")[1]) == result
        out, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out) == (0, "")
        assert f"the daemon of {home.root} is running as process {process.pid}" in err
        assert "the daemon is stopping" in err
    assert hyp("daemon", "stop")[:2] == (0, "no daemon was running\n")
    assert hyp("daemon", "status")[0] == 3


def test_stop_reports_the_rows_left_in_the_spool_and_how_to_commit_them(
    hyp: Hyp, home: Home, capfd: pytest.CaptureFixture[str]
) -> None:
    """No engine is started to commit them: stopping must be quick."""
    with Spool(home) as spool:
        spool.append(DATASET, rows(3))
    how = "to commit now: hyp flush (otherwise the daemon does it after its next start)\n"
    assert hyp("daemon", "stop")[1] == f"no daemon was running\n3 rows are still in the spool, safe on disk; {how}"
    assert json.loads(hyp("daemon", "stop", "--json")[1]) == {"stopped": False, "spool": {"rows": 3, "segments": 1}}
    cli_daemon.show_stopped(home, stopped=True)
    assert capfd.readouterr().out == (
        f"the daemon was stopped\n3 rows are still in the spool because the engine is not running, safe on disk; {how}"
    )


def test_a_killed_daemon_is_reported_as_not_running(hyp: Hyp, home: Home) -> None:
    with daemon(home) as process:
        eventually(lambda: daemon_process.read_daemon_status(home))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=PATIENCE)
    assert daemon_process.read_daemon_status(home)["pid"] == process.pid
    code, _, err = hyp("daemon", "status")
    assert code == 3
    assert f"process {process.pid} was killed" in err
    assert hyp("daemon", "stop")[0] == 0
    with daemon(home) as again:
        assert daemon_process.running_daemon(home) == again.pid


def test_a_daemon_of_an_older_version_is_a_warning_with_the_restart_command(hyp: Hyp, home: Home) -> None:
    with daemon_process.hold_daemon_lock(home):
        daemon_process.daemon_status_path(home).write_text(json.dumps({"pid": os.getpid(), "version": "0.0.1"}))
        code, out, err = hyp("daemon", "status", "--json")
    assert (code, json.loads(out)["version"]) == (0, "0.0.1")
    assert "runs version 0.0.1" in err
    assert "hyp daemon restart" in err


def test_a_restart_with_an_invalid_config_keeps_the_running_daemon(hyp: Hyp, home: Home) -> None:
    with daemon_process.hold_daemon_lock(home):
        home.config.write_text("version = 1\n[sinks.team]\nkind = 'forwrd'\n")
        code, _, err = hyp("daemon", "restart")
        assert daemon_process.running_daemon(home) == os.getpid()
    assert code == 1
    assert "Did you mean forward?" in err


@pytest.mark.parametrize("text", ["soon", "-1", "5x"])
def test_an_invalid_timeout_is_rejected(hyp: Hyp, text: str) -> None:
    code, _, err = hyp("daemon", "stop", "--timeout", text)
    assert code == 2
    assert "such as 90s or 10m" in err


def test_a_second_daemon_exits_3_and_names_the_first(home: Home) -> None:
    with daemon(home) as first:
        second = subprocess.run(
            [HYP, "daemon", "run"],
            env={**os.environ, "HYP_HOME": str(home.root)},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert second.returncode == 3
        assert f"process {first.pid}" in second.stderr
        assert "try: hyp daemon stop" in second.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_daemon_stops_cleanly_on_a_signal(home: Home, number: signal.Signals) -> None:
    with daemon(home) as process:
        eventually(lambda: daemon_process.read_daemon_status(home))
        process.send_signal(number)
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
    assert daemon_process.running_daemon(home) is None


def test_a_daemon_does_not_start_with_an_invalid_config(home: Home) -> None:
    home.root.mkdir()
    home.config.write_text("version = 1\n[sinks.team]\nkind = 'forwrd'\n")
    with daemon(home) as process:
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "Did you mean forward?" in err
