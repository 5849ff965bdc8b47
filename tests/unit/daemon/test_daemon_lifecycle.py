"""Start and stop of a background daemon: one ready process per home, and signals that reach only the daemon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from hypaware.daemon import lifecycle, supervisor
from hypaware.errors import ConfigError, NotReady, Retryable
from hypaware.home import Home, daemon_process, locks
from tests.support import processes
from tests.support.daemon_home import NO_CLIENTS
from tests.support.processes import PATIENCE, eventually

# A process that holds the daemon's lock and ignores SIGTERM.
_STUBBORN = """
import signal, sys, time
from hypaware.home import daemon_process
from hypaware.home import Home


signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True))
with daemon_process.hold_daemon_lock(Home.from_environment()):
    print("running", flush=True)
    while True:
        time.sleep(60)
"""


sees_open_files = pytest.mark.skipif(
    not Path("/proc/self/fd").is_dir(), reason="open files are not visible on this system"
)


@pytest.fixture
def home(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A separate user without a supervisor."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "HYP_CRASH_AT"):
        monkeypatch.delenv(name, raising=False)
    home.root.mkdir()
    home.config.write_text(NO_CLIENTS)
    yield home
    lifecycle.stop_daemon(home, force=True)


@contextmanager
def stubborn(home: Home) -> Iterator[subprocess.Popen[str]]:
    with processes.running(_STUBBORN, home) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        yield process


def test_concurrent_starts_create_one_ready_daemon_detached_from_the_terminal(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("HYP_HOME", "elsewhere")
    monkeypatch.setenv("CODEX_HOME", "relative")
    pids: list[int] = []
    starts = [threading.Thread(target=lambda: pids.append(lifecycle.start_daemon(home, wait=60))) for _ in range(3)]
    for each in starts:
        each.start()
    for each in starts:
        each.join()
    (pid,) = set(pids)
    assert len(pids) == 3
    assert (daemon_process.running_daemon(home), daemon_process.read_daemon_status(home)["pid"]) == (pid, pid)
    process = psutil.Process(pid)
    assert (os.getsid(pid), process.cwd(), process.terminal()) == (pid, "/", None)
    assert "daemon" in process.cmdline()
    given = process.environ()
    assert (given["HYP_HOME"], given["CODEX_HOME"]) == (str(home.root), str(Path("relative").absolute()))
    assert "TERM" not in given
    assert (home.logs / "daemon.log").stat().st_mode & 0o777 == 0o600
    assert f"is running as process {pid}" in (home.logs / "daemon.log").read_text()
    assert (home.logs / "daemon-start.log").read_text() == ""
    assert lifecycle.stop_daemon(home)
    assert not lifecycle.stop_daemon(home)
    assert daemon_process.read_daemon_status(home) == {}


def test_daemon_that_dies_while_starting_is_reported_with_its_output(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os, sys\nprint('no luck today', file=sys.stderr)\nos._exit(9)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(NotReady, match=r"ended while starting: exit code 9\nno luck today$") as failed:
        lifecycle.start_daemon(home)
    assert failed.value.repair == (f"tail -n 50 {home.logs / 'daemon-start.log'} {home.logs / 'daemon.log'}",)
    assert not locks.is_locked(home.run / "daemon-start.lock")


def test_start_that_takes_too_long_is_reported_and_continues(home: Home) -> None:
    with stubborn(home) as process:
        with pytest.raises(NotReady, match="is starting but not ready") as failed:
            lifecycle.start_daemon(home, wait=0.0)
        assert failed.value.kind == "daemon_not_ready"
        assert process.poll() is None
        processes.kill(process)


def test_start_checks_config_and_home_before_it_creates_a_process(home: Home) -> None:
    home.config.write_text("version = 1\n[sinks.team]\nkind = 'forwrd'\n")
    with pytest.raises(ConfigError, match="Did you mean forward"):
        lifecycle.start_daemon(home)
    assert not home.logs.exists()


def test_daemon_that_does_not_end_is_killed_only_with_force(home: Home) -> None:
    notices: list[str] = []
    with stubborn(home) as process:
        with pytest.raises(Retryable, match=rf"process {process.pid}\) did not end within") as failed:
            lifecycle.stop_daemon(home, wait=0.0, notify=notices.append)
        assert "hyp daemon stop --force" in failed.value.repair
        assert process.stdout is not None
        assert process.stdout.readline() == "asked\n"
        assert process.poll() is None
        assert lifecycle.stop_daemon(home, wait=0.0, force=True, notify=notices.append)
        assert process.wait(PATIENCE) == -signal.SIGKILL
    assert notices == [f"killing the daemon (process {process.pid})"]


@sees_open_files
def test_reused_pid_is_not_signalled(home: Home) -> None:
    """A killed daemon leaves its pid in the lock file, and the next one has not written its own yet."""
    with stubborn(home) as daemon, subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        daemon_process.daemon_lock_path(home).write_text(f"{other.pid}\n")
        with pytest.raises(NotReady, match="another container") as failed:
            lifecycle.stop_daemon(home, wait=0.0)
        assert failed.value.kind == "daemon_elsewhere"
        assert (daemon.poll(), other.poll()) == (None, None)
        other.communicate(b"\n", timeout=PATIENCE)
        assert other.returncode == 0
        processes.kill(daemon)


@sees_open_files
def test_daemon_without_a_written_pid_is_found_by_its_lock(home: Home) -> None:
    with stubborn(home) as daemon:
        daemon_process.daemon_lock_path(home).write_text("")
        assert daemon_process.running_daemon(home) == daemon.pid
        assert lifecycle.stop_daemon(home, wait=0.0, force=True)
        assert daemon.wait(PATIENCE) == -signal.SIGKILL
    assert daemon_process.running_daemon(home) is None


def test_signal_to_a_daemon_that_has_just_ended_is_no_error(home: Home) -> None:
    with stubborn(home) as daemon:
        processes.kill(daemon)
    eventually(lambda: not psutil.pid_exists(daemon.pid))
    daemon_process.signal_daemon(home, daemon.pid, signal.SIGTERM)


def test_background_command_does_not_depend_on_the_callers_folder_or_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    monkeypatch.setenv("PATH", "")
    version = subprocess.run(
        [*supervisor.hyp_command("version", "--json")], capture_output=True, text=True, timeout=PATIENCE
    )
    assert version.returncode == 0, version.stderr
    assert supervisor.is_current_command(supervisor.hyp_command("daemon", "run"))
    assert not supervisor.is_current_command(["/gone/python", *supervisor.hyp_command()[1:]])
    assert not supervisor.is_current_command([])
