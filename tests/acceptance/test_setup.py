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

from hypaware.engine import jvm
from hypaware.gateway import handover
from hypaware.home import Home, cache_dir, locks
from tests.support import codex_rollouts, plugin_distributions
from tests.support.claude_files import LONG_AGO, aged, turns, write
from tests.support.command import Hyp
from tests.support.ports import held_port
from tests.support.processes import eventually

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
    """Occupies the port of the home's gateway until the test closes it."""
    with held_port() as port, closing(socket.create_server(("127.0.0.1", port))) as found:
        yield found


@pytest.fixture
def hyp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listener: socket.socket) -> Iterator[Hyp]:
    """A user with two clients, their history, a config, and a third client that is broken."""
    user = tmp_path / "user"
    for folder in (".claude", ".codex", "site"):
        (user / folder).mkdir(parents=True)
    (user / ".claude/settings.json").write_text(SETTINGS)
    entry_points = "[hypaware.clients]\nbroken = broken:CLIENT\n"
    plugin_distributions.install(user / "site", "broken-client", entry_points, "broken", BROKEN)
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
    if (pid := locks.lock_holder(handover.fallback_lock_path(Home(command.home)))) is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: not locks.is_locked(handover.fallback_lock_path(Home(command.home))))


def stage(user: Path) -> None:
    """Write the history of both clients: 9 and 118 rows."""
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


COUNT = "SELECT client_name AS client, provider, count(*) AS n FROM ai_gateway_messages GROUP BY ALL ORDER BY ALL"
FLAGS = ("--yes", "--export", "local-parquet")


def test_walkthrough_backfill_client_history(hyp: Hyp, tmp_path: Path, listener: socket.socket) -> None:
    """Smoke test: one command sets everything up; running it again adds new history and repairs."""
    port = listener.getsockname()[1]
    listener.close()
    user = tmp_path / "user"
    stage(user)

    first = hyp.run("setup", *FLAGS, HYP_DEV_TELEMETRY="1", DEV_RUN_ID="first")
    assert first.code == 0, first.err
    check_imported(hyp, first.out)
    check_followed(hyp, user)
    attached = hyp.ok("setup", *FLAGS, "--attach")
    assert statuses(attached)["claude"] == statuses(attached)["codex"] == "done"
    check_attached(hyp, user, port)
    config = (hyp.home / "config.toml").read_text()
    assert config.startswith(CONFIG.format(port=port))
    assert f'destination = "{tmp_path / "hypaware-parquet"}"' in config
    check_telemetry(hyp.home)

    check_second_run_changes_nothing(hyp, config)
    check_repair(hyp, user, config)
    check_config_change_needs_force(hyp, config)
    check_unreadable_history_fails_alone(hyp, user)


def check_imported(hyp: Hyp, output: str) -> None:
    """The rows are in the lake, and the suggested queries work."""
    assert hyp.query(COUNT) == [
        {"client": "claude", "provider": "anthropic", "n": 9},
        {"client": "codex", "provider": "openai", "n": 118},
    ]
    assert re.search(r"claude +ok +1 +9 +0", output)
    assert re.search(r"codex +ok +\d+ +118 +0", output)
    assert "Try these queries" in output
    suggested = [line for line in output.splitlines() if line.startswith("hyp query sql")]
    assert len(suggested) == 3
    for line in suggested:
        answer = hyp.run(*shlex.split(line)[1:], "--format", "jsonl")
        assert (answer.code, bool(answer.out)) == (0, True), line


def check_followed(hyp: Hyp, user: Path) -> None:
    """The clients' settings are untouched, and a new session is recorded from its transcript."""
    assert (user / ".claude/settings.json").read_text() == SETTINGS

    def follow() -> dict[str, Any]:
        return {each["client"]: each["follow"] or {} for each in hyp.ok("status")["clients"]}

    eventually(lambda: {follow()[each].get("state") for each in ("claude", "codex")} == {"following"})
    write(user / ".claude/projects/-new/now.jsonl", turns("now", 1), age=0)
    eventually(lambda: follow()["claude"]["rows"] == 3)
    assert hyp.ok("backfill", "claude")["providers"][0]["rows_written"] == 0
    assert hyp.query(COUNT)[0]["n"] == 9 + 3


def check_attached(hyp: Hyp, user: Path, port: int) -> None:
    states = {each["client"]: each["state"] for each in hyp.ok("client", "status")["clients"]}
    assert (states["claude"], states["codex"]) == ("attached", "attached")
    settings = json.loads((user / ".claude/settings.json").read_text())
    assert settings["env"]["ANTHROPIC_BASE_URL"] == f"http://127.0.0.1:{port}/claude"


def check_telemetry(home: Path) -> None:
    (about,) = spans(home, "walkthrough.backfill", "first")
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
    finished = {each["provider"]: each["rows_written"] for each in spans(home, "backfill.provider_finish", "first")}
    assert finished == {"claude": 9, "codex": 118}
    (start,) = spans(home, "backfill.start", "first")
    assert (start["until"], start["provider_count"]) == (until, 2)


def check_second_run_changes_nothing(hyp: Hyp, config: str) -> None:
    again = hyp.ok("setup", *FLAGS)
    assert set(statuses(again).values()) == {"unchanged"}
    assert [each["rows_written"] for each in again["backfill"]["providers"]] == [0, 0]
    assert again["overview"]["totals"]["parts"] == 127 + 3
    assert (hyp.home / "config.toml").read_text() == config


def check_repair(hyp: Hyp, user: Path, config: str) -> None:
    """New history is imported, a killed daemon is restarted, reverted settings are attached again."""
    os.kill(hyp.ok("daemon", "status")["pid"], signal.SIGKILL)
    write(user / ".claude/projects/-p/more.jsonl", turns("more", 2))
    (user / ".claude/settings.json").write_text(SETTINGS)
    repaired = hyp.ok("setup", "--yes")
    assert (hyp.home / "config.toml").read_text() == config
    assert statuses(repaired) == {
        "config": "unchanged",
        "engine": "unchanged",
        "import": "done",
        "daemon": "done",
        "claude": "done",
        "codex": "unchanged",
    }
    assert hyp.query(COUNT)[0]["n"] == 9 + 3 + 6


def check_config_change_needs_force(hyp: Hyp, config: str) -> None:
    refused = hyp.run("setup", "--retention-days", "36500", "--json")
    assert (refused.code, refused.json["error"]["kind"]) == (1, "config_would_change")
    assert refused.json["error"]["repair"][0] == "hyp setup --retention-days 36500 --json --force"
    assert (hyp.home / "config.toml").read_text() == config
    hyp.ok("setup", "--retention-days", "36500", "--force")
    (copy,) = hyp.home.glob("config.toml.bak-*")
    assert copy.read_text() == config
    assert "default_days = 36500" in (hyp.home / "config.toml").read_text()


def check_unreadable_history_fails_alone(hyp: Hyp, user: Path) -> None:
    """A client with an unreadable history does not stop the others. The daemon might import them first, so stop it."""
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


def test_a_failed_step_is_reported_with_its_repair_and_the_other_steps_run(
    hyp: Hyp, tmp_path: Path, listener: socket.socket
) -> None:
    """Java is missing and another program uses the gateway's port; later the port is free."""
    stage(tmp_path / "user")
    nothing = {"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)}
    done = hyp.run("setup", "--yes", "--attach", "--json", **nothing)
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
    assert jvm.java_install_command() in document["error"]["repair"]
    assert "hyp config set gateway.listen" in repair
    assert "hyp client attach claude" in repair
    assert hyp.ok("daemon", "status")["state"] == "running"
    settings = tmp_path / "user/.claude/settings.json"
    assert settings.read_text() == SETTINGS

    listener.close()
    eventually(lambda: hyp.ok("daemon", "status")["gateway"]["state"] == "listening")
    second = hyp.run("setup", "--client", "claude", "--no-backfill", "--attach", "--json", **nothing)
    assert (second.code, statuses(second.json)["claude"]) == (3, "done")
    assert "ANTHROPIC_BASE_URL" in settings.read_text()
