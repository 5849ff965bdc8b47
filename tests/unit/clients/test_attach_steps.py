"""Attach and detach on real files: atomic, never over another program's change, and fully reversible."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hypaware.clients import attach, settings_file
from hypaware.clients.claude.attach import ASSUME_FIRST_PARTY, ClaudeSettings
from hypaware.clients.codex.attach import CodexSettings
from hypaware.clients.settings_file import SettingsRefused
from hypaware.errors import Retryable
from hypaware.gateway.routes import Routes, read_custom_upstreams
from hypaware.home import Home
from tests.support import processes
from tests.support.unprivileged import unprivileged

GATEWAY = "http://127.0.0.1:18521"
CLAUDE = ClaudeSettings()
TEXT = '{\n  "model": "opus",\n  "env": {"ANTHROPIC_AUTH_TOKEN": "very-secret-value"}\n}\n'


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "user/.claude").mkdir(parents=True)
    return {"HOME": str(tmp_path / "user")}


@pytest.fixture
def file(environment: dict[str, str]) -> Path:
    path = CLAUDE.path(environment)
    path.write_text(TEXT)
    path.chmod(0o640)
    return path


def test_detach_restores_the_same_bytes_and_removes_the_record(
    home: Home, environment: dict[str, str], file: Path
) -> None:
    done = attach.attach_client(home, CLAUDE, GATEWAY, environment)
    assert (done.changed, done.base_url, done.upstream) == (True, f"{GATEWAY}/claude", None)
    assert json.loads(file.read_text())["env"]["ANTHROPIC_BASE_URL"] == f"{GATEWAY}/claude"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert stat.S_IMODE(attach.record_path(home, "claude").stat().st_mode) == 0o600
    assert "very-secret-value" not in attach.record_path(home, "claude").read_text()
    assert not attach.attach_client(home, CLAUDE, GATEWAY, environment).changed
    assert attach.detach_client(home, CLAUDE, environment).changed
    assert file.read_text() == TEXT
    assert [each.name for each in file.parent.iterdir()] == ["settings.json"]
    assert attach.read_record(home, "claude") is None
    assert not attach.detach_client(home, CLAUDE, environment).changed


@pytest.mark.parametrize("client", [CLAUDE, CodexSettings()], ids=lambda each: each.name)
def test_detach_removes_a_file_that_attach_created(home: Home, tmp_path: Path, client: Any) -> None:
    environment = {"HOME": str(tmp_path / "nobody")}
    attach.attach_client(home, client, GATEWAY, environment)
    assert client.base_url(client.path(environment).read_text()).startswith(GATEWAY)
    attach.detach_client(home, client, environment)
    assert not client.path(environment).exists()


@pytest.mark.parametrize("client", [CLAUDE, CodexSettings()], ids=lambda each: each.name)
def test_a_file_removed_while_attached_is_not_left_empty(home: Home, tmp_path: Path, client: Any) -> None:
    """Claude Code treats an empty settings.json as damaged."""
    environment = {"HOME": str(tmp_path / "user")}
    path = client.path(environment)
    path.parent.mkdir(parents=True)
    path.write_text({"claude": TEXT, "codex": 'model = "x"\n'}[client.name])
    attach.attach_client(home, client, GATEWAY, environment)
    path.unlink()
    assert attach.attach_client(home, client, GATEWAY, environment).changed
    attach.detach_client(home, client, environment)
    assert list(path.parent.iterdir()) == []


def test_detach_without_attach_touches_nothing(home: Home, environment: dict[str, str], file: Path) -> None:
    before = file.stat()
    assert not attach.detach_client(home, CLAUDE, environment).changed
    assert not attach.detach_client(home, CodexSettings(), environment).changed
    after = file.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert not home.root.exists()


def test_a_dry_run_shows_the_change_and_writes_nothing(home: Home, environment: dict[str, str], file: Path) -> None:
    shown = attach.attach_client(home, CLAUDE, GATEWAY, environment, dry_run=True)
    assert f'+    "ANTHROPIC_BASE_URL": "{GATEWAY}/claude"' in shown.diff or GATEWAY in shown.diff
    assert file.read_text() == TEXT
    assert not home.root.exists()
    attach.attach_client(home, CLAUDE, GATEWAY, environment)
    written = file.read_text()
    assert attach.detach_client(home, CLAUDE, environment, dry_run=True).changed
    assert file.read_text() == written


def test_a_link_is_followed_and_stays(home: Home, environment: dict[str, str], file: Path, tmp_path: Path) -> None:
    dotfiles = tmp_path / "dotfiles.json"
    file.rename(dotfiles)
    file.symlink_to(dotfiles)
    attach.attach_client(home, CLAUDE, GATEWAY, environment)
    assert file.is_symlink()
    assert GATEWAY in dotfiles.read_text()
    attach.detach_client(home, CLAUDE, environment)
    assert (file.is_symlink(), dotfiles.read_text()) == (True, TEXT)


@pytest.mark.hazard(63)
def test_attach_follows_a_new_port_and_detach_still_restores(
    home: Home, environment: dict[str, str], file: Path
) -> None:
    attach.attach_client(home, CLAUDE, GATEWAY, environment)
    attach.attach_client(home, CLAUDE, "http://127.0.0.1:20000", environment)
    assert json.loads(file.read_text())["env"]["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:20000/claude"
    attach.detach_client(home, CLAUDE, environment)
    assert file.read_text() == TEXT


@pytest.mark.hazard(111)
@pytest.mark.parametrize("own", [None, "https://proxy.example"])
def test_a_settings_file_of_an_earlier_version_is_completed(
    home: Home, environment: dict[str, str], file: Path, own: str | None
) -> None:
    """Earlier versions did not say that the upstream is Anthropic itself."""
    if own:
        file.write_text(json.dumps({"env": {"ANTHROPIC_BASE_URL": own}}))
    original = file.read_text()
    attach.attach_client(home, CLAUDE, GATEWAY, environment)
    record = attach.read_record(home, "claude")
    assert record is not None
    settings = json.loads(file.read_text())
    complete = dict(settings["env"])
    settings["env"].pop(ASSUME_FIRST_PARTY, None)
    file.write_text(json.dumps(settings))
    ours = {name: value for name, value in record.ours.items() if name != "variables"}
    attach.write_record(home, replace(record, ours=ours, written_sha256=settings_file.hash_text(file.read_text())))
    assert attach.attach_client(home, CLAUDE, GATEWAY, environment).upstream == own
    assert json.loads(file.read_text())["env"] == complete
    assert (ASSUME_FIRST_PARTY in complete) == (own is None)
    attach.detach_client(home, CLAUDE, environment)
    assert json.loads(file.read_text()) == json.loads(original)


@pytest.mark.hazard(63)
def test_if_the_settings_file_moved_the_old_file_is_restored_first(
    home: Home, environment: dict[str, str], file: Path, tmp_path: Path
) -> None:
    attach.attach_client(home, CLAUDE, GATEWAY, environment)
    moved = {**environment, "CLAUDE_CONFIG_DIR": str(tmp_path / "moved")}
    assert attach.attach_client(home, CLAUDE, GATEWAY, moved, dry_run=True).path == tmp_path / "moved/settings.json"
    assert GATEWAY in file.read_text()
    attach.attach_client(home, CLAUDE, GATEWAY, moved)
    assert file.read_text() == TEXT
    assert GATEWAY in CLAUDE.path(moved).read_text()
    attach.detach_client(home, CLAUDE, environment)
    assert not CLAUDE.path(moved).exists()


@pytest.mark.hazard(63)
def test_a_lost_attach_record_does_not_leave_a_broken_client(
    home: Home, environment: dict[str, str], file: Path
) -> None:
    attach.attach_client(home, CLAUDE, GATEWAY, environment)
    attach.remove_record(home, "claude")
    attach.detach_client(home, CLAUDE, environment)
    assert json.loads(file.read_text()) == json.loads(TEXT)
    attach.attach_client(home, CLAUDE, GATEWAY, environment)
    attach.record_path(home, "claude").write_text('{"v": 1, "client":')
    attach.detach_client(home, CLAUDE, environment)
    assert json.loads(file.read_text()) == json.loads(TEXT)


@pytest.mark.hazard(64)
def test_a_change_between_reading_and_writing_is_kept(
    home: Home, environment: dict[str, str], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user saves the file right after attach has read it: the user's change must survive."""
    edits = iter(['{"model": "first"}', '{"model": "second"}'])
    read = settings_file.read_settings

    def read_then_somebody_saves(path: Path) -> settings_file.SettingsSnapshot:
        snapshot = read(path)
        if (text := next(edits, None)) is not None:
            file.write_text(text)
        return snapshot

    monkeypatch.setattr(settings_file, "read_settings", read_then_somebody_saves)
    attach.attach_client(home, CLAUDE, GATEWAY, environment)
    value = json.loads(file.read_text())
    assert (value["model"], value["env"]["ANTHROPIC_BASE_URL"]) == ("second", f"{GATEWAY}/claude")
    attach.detach_client(home, CLAUDE, environment)
    assert file.read_text() == '{"model": "second"}'


@pytest.mark.hazard(64)
def test_a_file_that_keeps_changing_is_left_alone_with_an_error(
    home: Home, environment: dict[str, str], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = settings_file.read_settings
    saved: list[str] = []

    def read_then_somebody_saves(path: Path) -> settings_file.SettingsSnapshot:
        snapshot = read(path)
        saved.append(json.dumps({"saved": len(saved)}))
        file.write_text(saved[-1])
        return snapshot

    monkeypatch.setattr(settings_file, "read_settings", read_then_somebody_saves)
    with pytest.raises(Retryable, match="another program keeps changing"):
        attach.attach_client(home, CLAUDE, GATEWAY, environment)
    assert file.read_text() == saved[-1]
    assert [each.name for each in file.parent.iterdir()] == ["settings.json"]


@pytest.mark.hazard(64)
def test_concurrent_attaches_and_detaches_end_in_a_consistent_state(
    home: Home, environment: dict[str, str], file: Path
) -> None:
    def many(seed: int) -> None:
        for turn in range(10):
            if (turn + seed) % 2:
                attach.attach_client(home, CLAUDE, GATEWAY, environment)
            else:
                attach.detach_client(home, CLAUDE, environment)

    assert processes.together([partial(many, seed) for seed in range(4)]) == [0] * 4
    attach.attach_client(home, CLAUDE, GATEWAY, environment)
    assert json.loads(file.read_text())["env"]["ANTHROPIC_BASE_URL"] == f"{GATEWAY}/claude"
    attach.detach_client(home, CLAUDE, environment)
    assert file.read_text() == TEXT


KILLED = """
import sys
from hypaware.clients import attach
from hypaware.home import Home
from hypaware.clients.claude.attach import ClaudeSettings


step, user, gateway = sys.argv[1:]
if step == "attach":
    attach.attach_client(Home.from_environment(), ClaudeSettings(), gateway, {"HOME": user})
else:
    attach.detach_client(Home.from_environment(), ClaudeSettings(), {"HOME": user})
"""


@pytest.mark.hazard(63)
@pytest.mark.parametrize(
    "point", ["clients.attach.after-record", "clients.settings.before-rename", "clients.attach.after-write"]
)
@pytest.mark.parametrize("attached", [False, True])
def test_detach_restores_the_file_after_a_killed_attach(
    home: Home, environment: dict[str, str], file: Path, point: str, attached: bool
) -> None:
    if attached:
        attach.attach_client(home, CLAUDE, "http://127.0.0.1:20000", environment)
    done = processes.run(KILLED, home, "attach", environment["HOME"], GATEWAY, crash_at=point)
    assert processes.was_killed(done)
    attach.detach_client(home, CLAUDE, environment)
    assert json.loads(file.read_text()) == json.loads(TEXT)
    assert [each.name for each in file.parent.iterdir()] == ["settings.json"]
    assert not attach.detach_client(home, CLAUDE, environment).changed


@pytest.mark.hazard(63)
@pytest.mark.parametrize("point", ["clients.detach.after-restore", "clients.detach.after-forget"])
def test_a_killed_detach_can_be_repeated(home: Home, environment: dict[str, str], file: Path, point: str) -> None:
    attach.attach_client(home, CLAUDE, GATEWAY, environment)
    done = processes.run(KILLED, home, "detach", environment["HOME"], GATEWAY, crash_at=point)
    assert processes.was_killed(done)
    assert file.read_text() == TEXT
    assert not attach.detach_client(home, CLAUDE, environment).changed
    assert attach.read_record(home, "claude") is None


def test_a_read_only_file_is_refused(home: Home, environment: dict[str, str], file: Path) -> None:
    file.chmod(0o444)
    with unprivileged(), pytest.raises(SettingsRefused, match="read-only"):
        attach.attach_client(home, CLAUDE, GATEWAY, environment)
    assert file.read_text() == TEXT
    assert attach.read_record(home, "claude") is None


def test_an_unwritable_folder_is_refused_and_leaves_no_record(
    home: Home, environment: dict[str, str], file: Path
) -> None:
    file.parent.chmod(0o500)
    try:
        with unprivileged():
            with pytest.raises(SettingsRefused, match=r"cannot write .*: Permission denied"):
                attach.attach_client(home, CLAUDE, GATEWAY, environment)
            assert attach.read_record(home, "claude") is None
            with pytest.raises(SettingsRefused, match="cannot write"):
                attach.attach_client(
                    home, CLAUDE, GATEWAY, {**environment, "CLAUDE_CONFIG_DIR": str(file.parent / "new")}
                )
            file.parent.chmod(0o700)
            attach.attach_client(home, CLAUDE, GATEWAY, environment)
            known = attach.read_record(home, "claude")
            file.parent.chmod(0o500)
            with pytest.raises(SettingsRefused, match="cannot write"):
                attach.detach_client(home, CLAUDE, environment)
            with pytest.raises(SettingsRefused, match="cannot write"):
                attach.attach_client(home, CLAUDE, "http://127.0.0.1:1", environment)
            assert attach.read_record(home, "claude") == known
    finally:
        file.parent.chmod(0o700)
    attach.detach_client(home, CLAUDE, environment)
    assert file.read_text() == TEXT


@pytest.mark.parametrize("content", [b"\xff\xfe{}", b"{ // x\n}", b"[]"])
def test_a_refused_file_is_not_changed(home: Home, environment: dict[str, str], file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(SettingsRefused):
        attach.attach_client(home, CLAUDE, GATEWAY, environment)
    assert file.read_bytes() == content
    assert attach.read_record(home, "claude") is None


def test_a_pipe_in_place_of_the_file_does_not_block(home: Home, environment: dict[str, str], file: Path) -> None:
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(SettingsRefused, match="cannot read"):
        attach.attach_client(home, CLAUDE, GATEWAY, environment)


def test_a_base_url_with_a_password_is_not_attached(home: Home, environment: dict[str, str], file: Path) -> None:
    file.write_text('{"env": {"ANTHROPIC_BASE_URL": "https://me:hunter2@proxy.example"}}\n')
    before = file.read_bytes()
    with pytest.raises(SettingsRefused, match="a user name or a password") as refused:
        attach.attach_client(home, CLAUDE, GATEWAY, environment)
    assert "hunter2" not in refused.value.message
    assert file.read_bytes() == before
    assert attach.read_record(home, "claude") is None


@pytest.mark.parametrize("upstream", [None, {"path_prefix": "/claude", "base_url": "https://proxy.example/llm"}])
def test_a_record_of_an_earlier_version_with_its_one_upstream_is_read(
    home: Home, environment: dict[str, str], file: Path, upstream: dict[str, str] | None
) -> None:
    attach.attach_client(home, CLAUDE, GATEWAY, environment)
    path = attach.record_path(home, "claude")
    record = json.loads(path.read_text())
    del record["upstreams"]
    path.write_text(json.dumps({**record, "upstream": upstream}))

    found = Routes(read_custom_upstreams(home)).find("/claude/v1/messages")
    assert found is not None
    assert found.url == ("https://proxy.example/llm" if upstream else "https://api.anthropic.com") + "/v1/messages"
    attach.detach_client(home, CLAUDE, environment)
    assert file.read_text() == TEXT
