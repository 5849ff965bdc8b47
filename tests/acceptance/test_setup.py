"""`hyp setup` as a script runs it, with the real engine, daemon and gateway."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from hypaware import lock_file
from hypaware.capture import handover
from hypaware.engine import java
from hypaware.home import Home, cache_dir
from tests import codex_rollouts, installed
from tests.claude_files import LONG_AGO, aged, turns, write
from tests.command import Hyp
from tests.ports import held_port
from tests.processes import eventually

CONFIG = """# mine
version = 1

[gateway]
listen = "127.0.0.1:{port}"   # where I like it
"""
SETTINGS = '{\n  "model": "opus"\n}\n'
BROKEN = """
from hypaware.clients.client import Client

class History:
    name = "broken"
    summary = "fails"
    datasets = ("ai_gateway_messages",)
    environment = ()

    def find(self, environment):
        raise RuntimeError("the disk is made of cheese")
        yield

    def first_time(self, head):
        return None

    def read(self, reading, environment):
        yield

CLIENT = Client("broken", "a client whose history cannot be found", backfill=History())
"""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Has the port of the home's gateway; a test that lets it have it closes this."""
    with held_port() as port, closing(socket.create_server(("127.0.0.1", port))) as found:
        yield found


@pytest.fixture
def hyp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listener: socket.socket) -> Iterator[Hyp]:
    """Somebody with two clients, their history, a config of their own, and a third client that is broken."""
    user = tmp_path / "user"
    for folder in (".claude", ".codex", "site"):
        (user / folder).mkdir(parents=True)
    (user / ".claude/settings.json").write_text(SETTINGS)
    installed.install(user / "site", "broken-client", "[hypaware.clients]\nbroken = broken:CLIENT\n", "broken", BROKEN)
    monkeypatch.setenv("HYP_CACHE", str(cache_dir()))
    monkeypatch.setenv("HOME", str(user))
    monkeypatch.setenv("PYTHONPATH", str(user / "site"))
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)
    command = Hyp(tmp_path / "home")
    command.home.mkdir(mode=0o700)
    (command.home / "config.toml").write_text(CONFIG.format(port=listener.getsockname()[1]))
    yield command
    command.run("client", "detach")
    command.run("daemon", "stop")
    command.run("engine", "stop")
    if (pid := lock_file.holder(handover.lock_path(Home(command.home)))) is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: not lock_file.is_taken(handover.lock_path(Home(command.home))))


def stage(user: Path) -> None:
    """History of both clients; the rows that it makes are 9 and 118."""
    write(user / ".claude/projects/-p/s.jsonl", turns("s", 3))
    sessions = user / ".codex/sessions/2026/11/15"
    sessions.mkdir(parents=True)
    for name in codex_rollouts.sample_names():
        (sessions / name).write_bytes(codex_rollouts.sample(name))
        aged(sessions / name, LONG_AGO)


def statuses(document: dict[str, Any]) -> dict[str, str]:
    return {str(each.get("client") or each["step"]): each["status"] for each in document["steps"]}


def spans(home: Path, name: str, run_id: str) -> list[dict[str, Any]]:
    lines = (line for path in (home / "telemetry").glob("traces-*.jsonl") for line in path.read_text().splitlines())
    found = [json.loads(line) for line in lines]
    return [each["attributes"] for each in found if each["name"] == name and each["dev_run_id"] == run_id]


def test_walkthrough_backfill_client_history(hyp: Hyp, tmp_path: Path, listener: socket.socket) -> None:
    """The smoke of the seeds: one command, then everything is there; run again, it adds, and repairs what is broken."""
    port = listener.getsockname()[1]
    listener.close()
    user, config = tmp_path / "user", hyp.home / "config.toml"
    stage(user)
    flags = ("--yes", "--export", "local-parquet")
    first = hyp.run("setup", *flags, HYP_DEV_TELEMETRY="1", DEV_RUN_ID="first")
    assert first.code == 0, first.err

    # What a user sees: rows, clients that call the gateway, a daemon, a config that is still theirs.
    count = "SELECT client_name AS client, provider, count(*) AS n FROM ai_gateway_messages GROUP BY ALL ORDER BY ALL"
    imported = [
        {"client": "claude", "provider": "anthropic", "n": 9},
        {"client": "codex", "provider": "openai", "n": 118},
    ]
    assert hyp.query(count) == imported
    assert re.search(r"claude +ok +1 +9 +0", first.out)
    assert re.search(r"codex +ok +\d+ +118 +0", first.out)
    assert "Three questions" in first.out
    asked = [line for line in first.out.splitlines() if line.startswith("hyp query sql")]
    assert len(asked) == 3
    for line in asked:
        answer = hyp.run(*shlex.split(line)[1:], "--format", "jsonl")
        assert (answer.code, bool(answer.out)) == (0, True), line
    states = {each["client"]: each["state"] for each in hyp.ok("client", "status")["clients"]}
    assert (states["claude"], states["codex"]) == ("attached", "attached")
    settings = json.loads((user / ".claude/settings.json").read_text())
    assert settings["env"]["ANTHROPIC_BASE_URL"] == f"http://127.0.0.1:{port}/claude"
    daemon = hyp.ok("daemon", "status")["pid"]
    kept = config.read_text()
    assert kept.startswith(CONFIG.format(port=port))
    assert f'destination = "{tmp_path / "hypaware-parquet"}"' in kept

    # What telemetry says.
    (about,) = spans(hyp.home, "walkthrough.backfill", "first")
    until = about.pop("until")
    assert about == {
        "provider_count": 2,
        "providers": "claude,codex",
        "dry_run": False,
        "interactive": False,
        "consent": True,
        "consent_cancelled": False,
        "retention_days": 0,
        "providers_run": 2,
        "rows_written": 127,
        "status": "ok",
        "dev_run_id": "first",
        "hyp_component": "walkthrough",
        "hyp_operation": "walkthrough.backfill",
    }
    finished = {each["provider"]: each["rows_written"] for each in spans(hyp.home, "backfill.provider_finish", "first")}
    assert finished == {"claude": 9, "codex": 118}
    (start,) = spans(hyp.home, "backfill.start", "first")
    assert (start["until"], start["provider_count"]) == (until, 2)

    # Again: nothing to do, and nothing done.
    again = hyp.ok("setup", *flags)
    assert set(statuses(again).values()) == {"unchanged"}
    assert [each["rows_written"] for each in again["backfill"]["providers"]] == [0, 0]
    assert again["overview"]["totals"]["parts"] == 127
    assert config.read_text() == kept

    # More history, a daemon that was killed, settings that somebody has put back: it is all put in order.
    os.kill(daemon, signal.SIGKILL)
    write(user / ".claude/projects/-p/more.jsonl", turns("more", 2))
    (user / ".claude/settings.json").write_text(SETTINGS)
    repaired = hyp.ok("setup", "--yes")
    assert config.read_text() == kept
    assert statuses(repaired) == {
        "config": "unchanged",
        "engine": "unchanged",
        "import": "done",
        "daemon": "done",
        "claude": "done",
        "codex": "unchanged",
    }
    assert hyp.query(count)[0]["n"] == 9 + 6

    # A change needs a word; then a copy of the config stays.
    refused = hyp.run("setup", "--retention-days", "36500", "--json")
    assert (refused.code, refused.json["error"]["kind"]) == (1, "config_would_change")
    assert refused.json["error"]["repair"][0] == "hyp setup --retention-days 36500 --json --force"
    assert config.read_text() == kept
    hyp.ok("setup", "--retention-days", "36500", "--force")
    (copy,) = hyp.home.glob("config.toml.bak-*")
    assert copy.read_text() == kept
    assert "default_days = 36500" in config.read_text()

    # A client whose history cannot be read does not stop the others. The daemon could be quicker with theirs.
    hyp.ok("daemon", "stop")
    write(user / ".claude/projects/-p/third.jsonl", turns("third", 1))
    named = ("--client", "broken", "--client", "claude")
    failed = hyp.run("setup", *named, "--json", HYP_DEV_TELEMETRY="1", DEV_RUN_ID="bad")
    assert failed.code == 1, failed.err
    results = {each["provider"]: each for each in failed.json["backfill"]["providers"]}
    assert (results["broken"]["status"], results["claude"]["status"]) == ("failed", "ok")
    assert results["claude"]["rows_written"] == 3
    assert failed.json["error"]["kind"] == "providers_failed"
    assert statuses(failed.json)["claude"] == "unchanged"
    (about,) = spans(hyp.home, "walkthrough.backfill", "bad")
    assert (about["status"], about["rows_written"], about["providers_run"]) == ("failed", 3, 2)


def test_a_step_that_cannot_be_done_is_told_with_its_repair_and_the_others_are_done(
    hyp: Hyp, tmp_path: Path, listener: socket.socket
) -> None:
    """No Java, and another program on the gateway's port; then the port is free."""
    stage(tmp_path / "user")
    nothing = {"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)}
    done = hyp.run("setup", "--yes", "--json", **nothing)
    assert done.code == 3, done.err
    document = done.json
    assert statuses(document) == {
        "config": "done",
        "engine": "failed",
        "import": "skipped",
        "daemon": "done",
        "claude": "failed",
        "codex": "failed",
    }
    assert document["error"]["kind"] == "java_missing"
    repair = " ".join(document["error"]["repair"])
    assert java.install_command() in document["error"]["repair"]
    assert "hyp config set gateway.listen" in repair
    assert "hyp client attach claude" in repair
    assert hyp.ok("daemon", "status")["state"] == "running"
    settings = tmp_path / "user/.claude/settings.json"
    assert settings.read_text() == SETTINGS

    listener.close()
    eventually(lambda: hyp.ok("daemon", "status")["gateway"]["state"] == "listening")
    second = hyp.run("setup", "--client", "claude", "--no-backfill", "--json", **nothing)
    assert (second.code, statuses(second.json)["claude"]) == (3, "done")
    assert "ANTHROPIC_BASE_URL" in settings.read_text()
