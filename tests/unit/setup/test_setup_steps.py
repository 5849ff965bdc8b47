"""The output at the end of a setup, and the next steps of the user. Java is missing here, which is reported too."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hypaware.clients import attach
from hypaware.clients.claude import CLIENT
from hypaware.daemon import lifecycle
from hypaware.gateway import handover
from hypaware.home import Home, daemon_process, locks
from tests.support.fake_supervisors import FakeSupervisors
from tests.support.ports import FreePort
from tests.support.processes import eventually

Hyp = Callable[..., tuple[int, str, str]]
ALONE = ("--no-daemon", "--no-backfill")
NO_JAVA = 3


def test_without_a_client_the_import_is_skipped_with_the_reason(hyp: Hyp, user: Path, home: Home) -> None:
    shutil.rmtree(user)
    code, out, _ = hyp("setup", "--yes", "--no-daemon", "--no-backfill", "--json")
    document = json.loads(out)
    assert (code, document["clients"], document["error"]["kind"]) == (NO_JAVA, [], "java_missing")
    (result,) = [step for step in document["steps"] if step["step"] == "import"]
    assert (result["status"], result["said"]) == ("skipped", "no client found on this machine")
    assert home.config.exists()


def test_the_token_file_is_named_until_it_exists(hyp: Hyp, user: Path, home: Home) -> None:
    flags = ("setup", *ALONE, "--export", "server", "https://hyp.example")
    code, _, err = hyp(*flags)
    assert code == NO_JAVA
    assert f"next: put the server's token into {home.root / 'server-token'}" in err
    (home.root / "server-token").write_text("t0ken")
    assert "server's token" not in hyp(*flags)[2]


def test_a_sink_with_a_new_destination_needs_adopt_or_resend(hyp: Hyp, user: Path, home: Home) -> None:
    hyp("setup", *ALONE, "--export", "local-parquet", "/one")
    _, _, err = hyp("setup", *ALONE, "--export", "local-parquet", "/two", "--force")
    assert "hyp export adopt archive, or hyp export resend archive" in err
    assert f"in {home.config}.bak-" in err


def test_a_disabled_client_that_is_still_attached_is_named(hyp: Hyp, user: Path, home: Home) -> None:
    hyp("setup", *ALONE, "--client", "codex")
    assert CLIENT.settings is not None
    attach.attach_client(home, CLIENT.settings, "http://127.0.0.1:1", {"HOME": str(user)})
    (user / ".claude/settings.json").write_text("{}")  # otherwise the command would open the address
    assert (
        "next: claude is disabled but still attached to the gateway: hyp client detach claude"
        in hyp("setup", *ALONE)[2]
    )


@pytest.fixture
def supervisors(
    user: Path, home: Home, tmp_path: Path, free_port: FreePort, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeSupervisors]:
    """A systemd, and a gateway with a port of its own; what the setup has started ends with the test."""
    found = FakeSupervisors(tmp_path / "supervisor", tmp_path / "bin")
    (found.bin / "cat").symlink_to("/bin/cat")
    monkeypatch.setenv("PATH", str(found.bin))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    home.root.mkdir()
    home.config.write_text(f'version = 1\n[gateway]\nlisten = "127.0.0.1:{free_port()}"\n')
    yield found
    lifecycle.stop_daemon(home, force=True)
    if (pid := locks.lock_holder(handover.fallback_lock_path(home))) is not None:
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not locks.is_locked(handover.fallback_lock_path(home)))


@pytest.mark.hazard(111)
def test_clients_are_attached_to_a_daemon_that_starts_with_the_machine(
    hyp: Hyp, home: Home, supervisors: FakeSupervisors
) -> None:
    out = hyp("setup", "--yes", "--no-backfill", "--attach", "--dry-run")[1]
    assert "would be started now and with every login" in out
    assert lifecycle.find_installed_service(home) is None
    code, _, err = hyp("setup", "--yes", "--no-backfill", "--attach")
    assert (code, "starts with every login" in err, "after a reboot" in err) == (NO_JAVA, True, False)
    assert "loginctl enable-linger" in err
    assert lifecycle.find_installed_service(home) is not None
    pid = daemon_process.running_daemon(home)
    assert pid is not None
    assert lifecycle.started_by(home, pid) == "systemd"
    steps = json.loads(hyp("setup", "--yes", "--no-backfill", "--json")[1])["steps"]
    assert [step["status"] for step in steps if step["step"] in ("daemon", "attach")] == ["unchanged"] * 3
    assert daemon_process.running_daemon(home) == pid


@pytest.mark.hazard(111)
@pytest.mark.parametrize("why", ["absent", "failing"])
def test_without_a_working_supervisor_the_setup_says_what_happens_after_a_reboot(
    hyp: Hyp, home: Home, user: Path, supervisors: FakeSupervisors, why: str
) -> None:
    if why == "absent":
        supervisors.go_down()
    else:
        (user / ".config/systemd").mkdir(parents=True)
        (user / ".config/systemd/user").touch()
    code, _, err = hyp("setup", "--yes", "--no-backfill", "--attach")
    assert code == NO_JAVA
    assert "it does not start with this machine: " in err
    assert "after a reboot, attached clients cannot reach their provider until" in err
    assert "hyp daemon install" in err
    assert "ANTHROPIC_BASE_URL" in (user / ".claude/settings.json").read_text()
    pid = daemon_process.running_daemon(home)
    assert pid is not None


def test_by_default_clients_are_followed_by_a_daemon_that_starts_with_the_machine_and_not_attached(
    hyp: Hyp, home: Home, user: Path, supervisors: FakeSupervisors
) -> None:
    settings = (user / ".claude/settings.json").read_text()
    out = hyp("setup", "--yes", "--no-backfill", "--dry-run")[1]
    assert "would be started now and with every login; follows claude, codex" in out
    assert "claude: not asked for; its settings stay as they are" in out
    _, _, err = hyp("setup", "--yes", "--no-backfill")
    assert "starts with every login; follows claude, codex" in err
    assert "next: new sessions are recorded while they are written" in err
    assert lifecycle.find_installed_service(home) is not None
    assert (user / ".claude/settings.json").read_text() == settings
    assert not (user / ".codex/config.toml").exists()


def test_a_home_whose_only_task_is_to_receive_rows_installs_no_service(
    hyp: Hyp, home: Home, supervisors: FakeSupervisors
) -> None:
    home.config.write_text(home.config.read_text() + "[clients]\nclaude.enabled = false\ncodex.enabled = false\n")
    _, _, err = hyp("setup", "--yes", "--no-backfill")
    assert lifecycle.find_installed_service(home) is None
    assert "next: to start the daemon with every login: hyp daemon install" in err


def test_a_home_that_cannot_be_created_stops_the_setup_immediately(
    hyp: Hyp, user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("HYP_HOME", str(tmp_path / "file" / "home"))
    code, out, err = hyp("setup", "--yes")
    assert (code, out) == (1, "")
    assert "error:" in err
    assert "ANTHROPIC_BASE_URL" not in (user / ".claude/settings.json").read_text()
