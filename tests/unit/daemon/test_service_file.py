"""The daemon as a service: the service file, files that are not changed, and start and stop through the supervisor."""

from __future__ import annotations

import json
import os
import plistlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hypaware.daemon import lifecycle, supervisor
from hypaware.daemon.supervisor import Launchd, Systemd
from hypaware.errors import ConfigError, HypError, NotReady
from hypaware.home import Home, daemon_process
from tests.support import processes
from tests.support.daemon_home import NO_CLIENTS
from tests.support.fake_supervisors import FakeSupervisors
from tests.support.processes import PATIENCE, eventually

_INSTALL = """
from hypaware.daemon import lifecycle
from hypaware.home import Home

lifecycle.install_service(Home.from_environment())
"""
_UNINSTALL = """
from hypaware.daemon import lifecycle
from hypaware.home import Home

lifecycle.uninstall_service(Home.from_environment())
"""


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSupervisors:
    """A separate user with fake supervisors."""
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    (tmp_path / "user").mkdir()
    for name in ("XDG_CONFIG_HOME", "HYP_CRASH_AT", *supervisor.list_folder_variables()):
        monkeypatch.delenv(name, raising=False)
    found = FakeSupervisors(tmp_path / "supervisor", tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{found.bin}{os.pathsep}{os.environ['PATH']}")
    return found


@pytest.fixture
def home(fakes: FakeSupervisors, tmp_path: Path) -> Iterator[Home]:
    """The user's default home."""
    home = Home(tmp_path / "user" / ".hyp")
    home.root.mkdir()
    home.config.write_text(NO_CLIENTS)
    yield home
    lifecycle.stop_daemon(home, force=True)


def unit(home: Home) -> Path:
    return home.root.parent / ".config" / "systemd" / "user" / "hypaware.service"


def settings(text: bytes) -> dict[str, str]:
    """Return the last value of each key."""
    return dict(line.split("=", 1) for line in text.decode().splitlines() if "=" in line and not line.startswith("#"))


def everything(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


# systemd


def test_install_replaces_a_daemon_started_by_hand_with_a_supervised_one(home: Home, fakes: FakeSupervisors) -> None:
    by_hand = lifecycle.start_daemon(home, wait=60)
    pid = lifecycle.install_service(home)
    assert pid != by_hand
    assert (daemon_process.running_daemon(home), lifecycle.started_by(home, pid)) == (pid, "systemd")
    found = lifecycle.find_installed_service(home)
    assert found is not None
    assert (found.kind, found.name, found.path, found.is_current) == ("systemd", "hypaware.service", unit(home), True)
    assert list(found.command) == supervisor.hyp_command("daemon", "run")
    assert psutil.Process(pid).environ()["HYP_HOME"] == str(home.root)

    assert lifecycle.install_service(home) == pid, "a repeated install changes nothing"
    unit(home).write_bytes(unit(home).read_bytes())
    pid, before = lifecycle.install_service(home), pid
    assert pid != before, "a daemon that was started from an older file is restarted"
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: daemon_process.running_daemon(home) is None)
    assert lifecycle.service_failure(home) is not None
    requested = len(fakes.calls)
    again = lifecycle.start_daemon(home, wait=60)
    assert "--user start hypaware.service" in fakes.calls[requested:]
    assert lifecycle.started_by(home, again) == "systemd"
    assert lifecycle.stop_daemon(home)
    assert "--user stop --no-block hypaware.service" in fakes.calls[requested:]

    assert lifecycle.uninstall_service(home)
    assert (
        daemon_process.running_daemon(home),
        lifecycle.find_installed_service(home),
        lifecycle.uninstall_service(home),
    ) == (None, None, False)
    assert [path.name for path in everything(unit(home).parent)] == ["default.target.wants"]
    assert list((unit(home).parent / "default.target.wants").iterdir()) == []


def test_daemon_is_started_and_stopped_without_a_supervisor_that_does_not_answer(
    home: Home, fakes: FakeSupervisors
) -> None:
    unit(home).parent.mkdir(parents=True)
    unit(home).write_bytes(Systemd(home).text())
    fakes.go_down()
    notices: list[str] = []
    pid = lifecycle.start_daemon(home, wait=60, notify=notices.append)
    assert notices == [
        "the daemon is installed as hypaware.service, but systemd does not answer (Failed to connect to bus: No medium "
        "found); not using it"
    ]
    assert lifecycle.started_by(home, pid) == "hand"
    assert lifecycle.uninstall_service(home, notify=notices.append)
    assert daemon_process.running_daemon(home) is None
    assert not unit(home).exists()


@pytest.mark.parametrize("how", ["down", "absent", "looks elsewhere"])
def test_install_without_a_supervisor_writes_nothing_and_names_the_alternative(
    home: Home, fakes: FakeSupervisors, how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if how == "down":
        fakes.go_down()
    elif how == "absent":
        monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    else:
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    before = everything(tmp_path / "user")
    with pytest.raises(NotReady) as failed:
        lifecycle.install_service(home)
    assert (failed.value.exit_code, failed.value.repair) == (3, ("hyp daemon start",))
    assert f"@reboot HYP_HOME={home.root} {sys.executable} -P -m hypaware.cli daemon start" in failed.value.message
    assert everything(tmp_path / "user") == before
    assert not (tmp_path / "xdg").exists()
    assert lifecycle.plan_service(home).why_not is not None


def test_dry_run_shows_the_service_file_and_writes_nothing(home: Home, fakes: FakeSupervisors, tmp_path: Path) -> None:
    before = everything(tmp_path / "user")
    plan = lifecycle.plan_service(home)
    assert (plan.path, plan.change, plan.why_not) == (unit(home), "new", None)
    assert plan.text.encode() == Systemd(home).text()
    assert everything(tmp_path / "user") == before
    assert {call.split()[1] for call in fakes.calls} == {"show"}


@pytest.mark.parametrize("text", [b"[Service]\nExecStart=/bin/true\n", b"", b"\xff\xfe"])
def test_foreign_service_file_is_not_changed(home: Home, text: bytes) -> None:
    unit(home).parent.mkdir(parents=True)
    unit(home).write_bytes(text)
    for step in (lifecycle.install_service, lifecycle.uninstall_service, lifecycle.plan_service):
        with pytest.raises(HypError, match="was not written by") as failed:
            step(home)
        assert failed.value.kind == "service_not_ours"
    assert unit(home).read_bytes() == text
    assert lifecycle.find_installed_service(home) is None


def test_service_file_of_another_home_is_not_changed(home: Home, tmp_path: Path) -> None:
    unit(home).parent.mkdir(parents=True)
    other = Systemd(Home(tmp_path / "other"))
    unit(home).write_bytes(other.text())
    assert lifecycle.find_installed_service(home) is None
    assert other.name != "hypaware.service"
    assert other.name.startswith("hypaware-")


def test_unit_restarts_a_failed_daemon_spares_the_engine_and_holds_no_secret(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-secret")
    monkeypatch.setenv("HYP_CACHE", "cache")
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", "~/claude")
    text = Systemd(home).text()
    found = settings(text)
    assert (found["Restart"], found["RestartSec"], found["KillMode"]) == ("on-failure", "5", "process")
    assert (found["OOMPolicy"], found["WantedBy"], found["UMask"]) == ("continue", "default.target", "0077")
    lines = text.decode().splitlines()
    assert f'Environment="HYP_HOME={home.root}"' in lines
    assert f'Environment="HYP_CACHE={Path("cache").absolute()}"' in lines
    assert f'Environment="CLAUDE_CONFIG_DIR={Path.home() / "claude"}"' in lines
    assert b"sk-ant-secret" not in text


def test_unusual_paths_are_quoted_in_the_unit(
    tmp_path: Path, fakes: FakeSupervisors, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = Home(tmp_path / 'a "quoted" $home \\ 100%')
    monkeypatch.setattr(sys, "executable", '/opt/my python/$x/50%/"p"')
    found = Systemd(odd)
    assert found.parse_command(found.text()) == tuple(supervisor.hyp_command("daemon", "run"))
    assert b"100%%" in found.text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed here")
def test_systemd_accepts_the_unit(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hypaware.service").write_bytes(Systemd(home).text())
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    message = subprocess.run(
        ["systemd-analyze", "--user", "--man=no", "verify", tmp_path / "hypaware.service"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    # Older versions do not support growing restart delays and report that they ignore them.
    complaints = [
        line
        for line in message.stderr.splitlines()
        if "hypaware.service" in line and "RestartSteps" not in line and "RestartMaxDelaySec" not in line
    ]
    assert complaints == []


def test_unit_of_a_removed_installation_is_reported_and_replaced(home: Home, fakes: FakeSupervisors) -> None:
    unit(home).parent.mkdir(parents=True)
    text = Systemd(home).text().replace(sys.executable.encode(), b"/gone/bin/python")
    unit(home).write_bytes(text)
    found = lifecycle.find_installed_service(home)
    assert found is not None
    assert (found.command[0], found.is_current) == ("/gone/bin/python", False)
    assert lifecycle.plan_service(home).change == "replace"
    lifecycle.install_service(home)
    found = lifecycle.find_installed_service(home)
    assert found is not None
    assert found.is_current
    assert lifecycle.plan_service(home).change == "none"


def test_failure_under_a_supervisor_is_reported_with_the_output(
    home: Home, fakes: FakeSupervisors, tmp_path: Path
) -> None:
    unit(home).parent.mkdir(parents=True)
    (tmp_path / "sitecustomize.py").write_text("import os, sys\nprint('no luck today', file=sys.stderr)\nos._exit(9)\n")
    lines = Systemd(home).text().replace(b"\nRestart=", f'\nEnvironment="PYTHONPATH={tmp_path}"\nRestart='.encode())
    unit(home).write_bytes(lines)
    with pytest.raises(NotReady, match=r"ended while starting: exit-code, 9\nno luck today$") as failed:
        lifecycle.start_daemon(home, wait=60)
    assert failed.value.repair == ("journalctl --user -u hypaware.service -n 50",)


def test_invalid_config_is_reported_before_anything_is_written(home: Home) -> None:
    home.config.write_text("version = 1\n[sinks.team]\nkind = 'forwrd'\n")
    with pytest.raises(ConfigError):
        lifecycle.install_service(home)
    assert not unit(home).exists()


@pytest.mark.parametrize("point", ["before-write", "after-write"])
def test_killed_install_can_be_repeated(home: Home, point: str) -> None:
    assert processes.was_killed(processes.run(_INSTALL, home, crash_at=f"daemon.install.{point}"))
    assert unit(home).exists() == (point == "after-write")
    assert {path.name for path in everything(unit(home).parent)} <= {"hypaware.service"}
    assert lifecycle.started_by(home, lifecycle.install_service(home)) == "systemd"


@pytest.mark.parametrize("point", ["before-remove", "after-remove"])
def test_killed_uninstall_can_be_repeated(home: Home, fakes: FakeSupervisors, point: str) -> None:
    unit(home).parent.mkdir(parents=True)
    unit(home).write_bytes(Systemd(home).text())
    Systemd(home).enable()
    assert processes.was_killed(processes.run(_UNINSTALL, home, crash_at=f"daemon.uninstall.{point}"))
    assert unit(home).exists() == (point == "before-remove")
    assert lifecycle.uninstall_service(home) == (point == "before-remove")
    assert lifecycle.find_installed_service(home) is None


def test_install_warns_about_logout_and_shell_variables(home: Home, fakes: FakeSupervisors) -> None:
    (linger,) = lifecycle.service_hints(home)
    assert "loginctl enable-linger" in linger
    (fakes.state / "linger").write_text("yes\n")
    assert lifecycle.service_hints(home) == []
    home.config.write_text(
        NO_CLIENTS + '[sinks.team]\nkind = "forward"\nurl = "https://host"\ntoken_env = "TEAM_TOKEN"\n'
    )
    (variables,) = lifecycle.service_hints(home)
    assert "TEAM_TOKEN" in variables


# launchd


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "find_supervisor", Launchd)


@pytest.mark.usefixtures("mac")
def test_launchd_agent_starts_at_login_and_restarts_after_a_failure(home: Home, fakes: FakeSupervisors) -> None:
    pid = lifecycle.install_service(home)
    assert lifecycle.started_by(home, pid) == "launchd"
    found = lifecycle.find_installed_service(home)
    assert found is not None
    assert found.path == home.root.parent / "Library" / "LaunchAgents" / "io.hypaware.daemon.plist"
    assert (found.name, found.is_current) == ("io.hypaware.daemon", True)
    agent = plistlib.loads(found.path.read_bytes())
    assert agent["ProgramArguments"] == supervisor.hyp_command("daemon", "run", "--quiet")
    assert (agent["RunAtLoad"], agent["KeepAlive"]) == (True, {"SuccessfulExit": False})
    assert agent["EnvironmentVariables"]["HYP_HOME"] == str(home.root)
    assert Path(agent["StandardErrorPath"]).parent.is_dir()
    assert lifecycle.install_service(home) == pid, "a repeated install changes nothing"
    assert lifecycle.stop_daemon(home)
    assert f"bootout gui/{os.getuid()}/io.hypaware.daemon" in fakes.calls
    assert lifecycle.started_by(home, lifecycle.start_daemon(home, wait=60)) == "launchd"
    assert lifecycle.uninstall_service(home)
    assert (daemon_process.running_daemon(home), found.path.exists()) == (None, False)


@pytest.mark.usefixtures("mac")
@pytest.mark.parametrize("text", [b"not a plist", plistlib.dumps({"Label": "io.hypaware.daemon"}), plistlib.dumps([1])])
def test_foreign_agent_is_not_changed(home: Home, text: bytes) -> None:
    path = Launchd(home).path
    path.parent.mkdir(parents=True)
    path.write_bytes(text)
    with pytest.raises(HypError, match="was not written by"):
        lifecycle.install_service(home)
    assert path.read_bytes() == text


# The command


def test_status_command_names_what_started_the_daemon(home: Home, fakes: FakeSupervisors) -> None:
    def hyp(*args: str) -> tuple[int, dict[str, object]]:
        done = subprocess.run(
            [*supervisor.hyp_command("daemon", *args), "--json"],
            env={**os.environ, "HYP_HOME": str(home.root)},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        return done.returncode, json.loads(done.stdout)

    assert hyp("install", "--dry-run")[1]["change"] == "new"
    code, found = hyp("install")
    assert (code, found["pid"]) == (0, daemon_process.running_daemon(home))
    code, found = hyp("status")
    assert (code, found["started_by"], found["state"]) == (0, "systemd", "running")
    assert isinstance(found["installed"], dict)
    assert found["installed"]["path"] == str(unit(home))
    before = found["pid"]
    code, found = hyp("restart")
    assert (code, found["started"], found["pid"] != before) == (0, True, True)
    assert hyp("uninstall") == (0, {"uninstalled": True})
    code, found = hyp("status")
    assert (code, found["state"], found["died"], found["installed"]) == (3, "stopped", None, None)
