"""Whoever comes from the JavaScript original: its cache, daemon, port and client settings are noticed and named."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hypaware.cli import entry
from hypaware.clients import attach, original_install
from hypaware.clients.claude.attach import ClaudeSettings
from hypaware.clients.codex.attach import CodexSettings
from hypaware.clients.settings_file import SettingsRefused
from hypaware.spool.segments import list_spooled_datasets
from tests.support.light_takeover import take_over
from tests.support.original_cache import SAMPLE
from tests.support.status_home import StatusHome

CLAUDE = {
    "model": "opus",
    "env": {"ANTHROPIC_BASE_URL": "http://127.0.0.1:18521", "ENABLE_TOOL_SEARCH": "true"},
    "_hypaware": {"attached_at": "2026-11-01T00:00:00Z", "version": "1.24.0", "port": 18521, "mode": "base_url"},
}
CODEX = """\
# BEGIN hypaware codex model_provider
# attached_at = "2026-11-01T00:00:00Z"
# port = 18521
model_provider = "hypaware"
# END hypaware codex model_provider

# BEGIN hypaware codex provider
[model_providers.hypaware]
base_url = "http://127.0.0.1:18521/v1"
# END hypaware codex provider
"""
UNIT = "[Service]\nExecStart=/usr/bin/node /usr/bin/hypaware.js daemon run --foreground --config /c.json\n"
# Named like the original's program, and run by Python: it listens, writes the original's files and waits.
DAEMON = """\
import json, os, pathlib, socket, sys
run = pathlib.Path(sys.argv[-1])
with socket.create_server(("127.0.0.1", 0)) as server:
    details = {"host": "127.0.0.1", "port": server.getsockname()[1]}
    (run / "status.json").write_text(json.dumps({"sources": [{"name": "gascity"}, {"details": details}]}))
    (run / "hypaware.pid").write_text(json.dumps({"pid": os.getpid(), "mode": "detached"}))
    print(details["port"], flush=True)
    sys.stdin.read()
"""


@contextmanager
def daemon(root: Path) -> Iterator[tuple[int, int]]:
    """Run a daemon like the original's; yield its pid and port."""
    run = root / "hypaware" / "run"
    run.mkdir(parents=True)
    program = root / "hypaware.js"
    program.write_text(DAEMON)
    command = [sys.executable, str(program), "daemon", "run", str(run)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
        process.communicate("")


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_nothing_is_said_without_an_original(at: StatusHome) -> None:
    assert not at.kinds() & set(original_install.KINDS)


def test_a_cache_is_noticed_before_the_home_is_set_up_until_it_is_imported(at: StatusHome) -> None:
    cache = at.user / ".hyp/hypaware/cache"
    shutil.copytree(SAMPLE, cache)
    found = at.diagnostic("original_cache")
    assert "not_set_up" in at.kinds()
    assert (found.severity, found.repair) == ("info", (f"hyp import-cache {cache}",))
    take_over(at.home, cache)
    assert "original_cache" not in at.kinds()


def test_a_running_daemon_and_its_port_are_named_with_their_commands(at: StatusHome) -> None:
    root = at.user / ".hyp"
    with daemon(root) as (pid, port):
        write(at.home.config, f'version = 1\n[gateway]\nlisten = "127.0.0.1:{port}"\n')
        found = at.diagnostic("original_daemon")
        assert f"process {pid}" in found.message
        assert found.repair == (f"HYP_HOME={root} npx hypaware daemon stop",)
        taken = at.diagnostic("original_port")
        assert taken.severity == "warning"
        assert f"127.0.0.1:{port}" in taken.message
        [command] = taken.repair
        assert command.startswith("hyp config set gateway.listen 127.0.0.1:")
        assert not command.endswith(f":{port}")
        write(at.home.config, "version = 1\n")
        assert "original_port" not in at.kinds()
        write(at.user / ".config/systemd/user/hypaware.service", UNIT)
        assert at.diagnostic("original_daemon").repair == (f"HYP_HOME={root} npx hypaware daemon uninstall",)
    # The files of a daemon that has ended name a port and a process that may belong to others.
    (at.user / ".config/systemd/user/hypaware.service").unlink()
    assert not at.kinds() & set(original_install.KINDS)


def test_the_pid_of_another_process_is_not_the_daemon(at: StatusHome) -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        write(at.user / ".hyp/hypaware/run/hypaware.pid", json.dumps({"pid": process.pid}))
        assert "original_daemon" not in at.kinds()
        process.kill()


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"pid": "x"}', '{"pid": -1}', '{"pid": 99999999999999999999}'])
def test_damaged_files_of_the_original_say_nothing_and_break_nothing(at: StatusHome, damage: str) -> None:
    for name in ("hypaware.pid", "status.json"):
        write(at.user / ".hyp/hypaware/run" / name, damage)
    write(at.user / ".claude/settings.json", damage + '"_hypaware"')
    write(at.user / ".config/systemd/user/hypaware.service", "[Service]\nExecStart=/usr/bin/hyp daemon run\n")
    assert not at.kinds() & {*original_install.KINDS, "unreadable"}


def test_its_settings_in_both_clients_are_named_and_urgent_once_it_is_gone(at: StatusHome) -> None:
    claude = write(at.user / ".claude/settings.json", json.dumps(CLAUDE))
    codex = write(at.user / ".codex/config.toml", CODEX)
    root = at.user / ".hyp"
    found = {each.repair: each for each in at.snapshot().diagnostics if each.kind == "original_client"}
    assert list(found) == [(f"HYP_HOME={root} npx hypaware detach {name}",) for name in ("claude", "codex")]
    assert [str(path) in each.message for path, each in zip((claude, codex), found.values(), strict=True)] == [True] * 2
    assert {each.severity for each in found.values()} == {"warning"}
    with daemon(root):
        assert {each.severity for each in at.snapshot().diagnostics if each.kind == "original_client"} == {"info"}


def test_a_client_that_only_reports_to_the_original_may_be_attached(at: StatusHome) -> None:
    telemetry = {"_hypaware": {"mode": "otel"}, "env": {"OTEL_LOGS_EXPORTER": "otlp"}}
    write(at.user / ".claude/settings.json", json.dumps(telemetry))
    assert at.diagnostic("original_client").severity == "info"
    assert attach.attach_client(at.home, ClaudeSettings(), "http://127.0.0.1:18521", at.environment).changed


@pytest.mark.parametrize(
    ("client", "file", "text"),
    [
        (ClaudeSettings(), ".claude/settings.json", json.dumps(CLAUDE)),
        (CodexSettings(), ".codex/config.toml", CODEX),
    ],
    ids=["claude", "codex"],
)
def test_attach_refuses_a_client_of_the_original_because_the_gateway_could_become_its_own_upstream(
    at: StatusHome, client: attach.ClientSettings, file: str, text: str
) -> None:
    path = write(at.user / file, text)
    with pytest.raises(SettingsRefused, match="JavaScript HypAware") as refused:
        attach.attach_client(at.home, client, "http://127.0.0.1:18521", at.environment)
    assert refused.value.repair == (f"npx hypaware detach {client.name}",)
    assert path.read_text() == text
    assert attach.read_record(at.home, client.name) is None


def test_a_home_in_the_folder_of_the_original_is_not_taken_for_set_up(at: StatusHome) -> None:
    write(at.home.spool / "claude-bodies/1.request.json", "{}")
    assert list_spooled_datasets(at.home) == []
    assert "not_set_up" in at.kinds()


def test_setup_names_the_cache_and_the_settings_before_it_does_anything(
    at: StatusHome, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (at.user / ".hyp/hypaware/cache/datasets/ai_gateway_messages").mkdir(parents=True)
    write(at.user / ".claude/settings.json", json.dumps(CLAUDE))
    for name, value in at.environment.items():
        monkeypatch.setenv(name, value)
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert entry.run(["setup", "--yes", "--dry-run", "--no-backfill", "--no-daemon"]) == 0
    said = capfd.readouterr().err
    assert f"hyp import-cache {at.user}/.hyp/hypaware/cache" in said
    assert "npx hypaware detach claude" in said
    assert not at.home.root.exists()
