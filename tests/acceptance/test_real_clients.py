"""The real Claude Code and Codex, attached with `hyp client attach`, through the gateway of `hyp daemon run`.

They come from npm (`make real-clients`), run without a terminal in their own folder, with an invented API key, and talk
to a stub: no network is needed. Tested with Claude Code 2.1.197 and Codex 0.166.0. Required settings:

- both: HOME and their config folders (CLAUDE_CONFIG_DIR, CODEX_HOME) in scratch, an API key in the environment
  (ANTHROPIC_API_KEY, for Codex in its auth.json), no proxy variables;
- Claude Code: CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC, or it contacts other hosts too; `--allowedTools`;
- Codex: `--dangerously-bypass-approvals-and-sandbox`, because the sandbox does not work inside a container, and
  `--skip-git-repo-check`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hypaware.gateway import handover
from hypaware.home import Home, cache_dir, locks
from hypaware.model.datasets import Row
from hypaware.model.match_keys import list_match_keys
from hypaware.spool import reader
from tests.support import claude_transcripts, codex_rollouts
from tests.support.client_script import COMMAND, LAST_WORD, Script
from tests.support.command import Hyp
from tests.support.history import readable, rows_of
from tests.support.ports import held_port
from tests.support.processes import PATIENCE, eventually, wait_until_gone
from tests.support.raw_exchanges import EXCHANGES, MESSAGES
from tests.support.upstream_stub import UpstreamStub

pytestmark = pytest.mark.real_clients

_SECONDS = 120
_KEY = "sk-ant-api03-nobody-issued-this"
_CONFIG = """\
version = 1
[gateway]
listen = "127.0.0.1:{port}"
[[gateway.upstreams]]
name = "anthropic"
path_prefix = "/v1/messages"
base_url = "{upstream}"
[[gateway.upstreams]]
name = "openai"
path_prefix = "/v1/responses"
base_url = "{upstream}"
[[gateway.upstreams]]
name = "elsewhere"
path_prefix = "/"
base_url = "{upstream}"
[flush]
interval = "1h"
cold_interval = "1h"
"""
ASIDE = {("HEAD", "/"), ("GET", "/v1/models")}
"""Calls of the clients that hold no conversation and that nobody decodes."""


@dataclass(frozen=True)
class Client:
    name: str
    first: tuple[str, ...]
    then: tuple[str, ...]
    """Goes on with the session before."""
    transcripts: str
    provider: Any


CLAUDE = Client(
    "claude",
    ("-p", "--allowedTools", "Bash", "--", "Say what the command says."),
    ("-p", "--continue", "--allowedTools", "Bash", "--", "And once more."),
    ".claude/projects/**/*.jsonl",
    claude_transcripts.PROVIDER,
)
_FREELY = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
CODEX = Client(
    "codex",
    ("exec", *_FREELY, "Say what the command says."),
    ("exec", "resume", "--last", *_FREELY, "And once more."),
    ".codex/sessions/**/*.jsonl",
    codex_rollouts.PROVIDER,
)


@dataclass(frozen=True)
class User:
    """A user with a home folder and a project."""

    hyp: Hyp
    folder: Path
    program: str

    @property
    def environment(self) -> dict[str, str]:
        beside = ("_proxy", "anthropic_", "claude", "openai_", "codex_")
        kept = {name: value for name, value in os.environ.items() if not _is_of(name, beside)}
        return {
            **kept,
            "HYP_HOME": str(self.hyp.home),
            "HYP_CACHE": str(cache_dir()),
            "HOME": str(self.folder),
            "CLAUDE_CONFIG_DIR": str(self.folder / ".claude"),
            "CODEX_HOME": str(self.folder / ".codex"),
            "ANTHROPIC_API_KEY": _KEY,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        }

    def says(self, *args: str) -> str:
        done = subprocess.run(
            [self.program, *args],
            env=self.environment,
            cwd=self.folder / "project",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{self.program} ended with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout


def _is_of(name: str, marks: tuple[str, ...]) -> bool:
    return any(mark in name.lower() for mark in marks)


def _program(name: str) -> str:
    chosen = os.environ.get("HYP_REAL_CLIENTS")
    found = shutil.which(name, path=str(Path(chosen) / "node_modules" / ".bin") if chosen else None)
    if found is None:
        where = f"in HYP_REAL_CLIENTS={chosen}" if chosen else "on PATH"
        pytest.skip(f"{name} is not installed {where}: make real-clients gets it from npm")
    return found


def _answers(port: int) -> bool:
    with closing(socket.socket()) as call:
        return call.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def attached(client: Client, tmp_path: Path, stub: UpstreamStub, port: int) -> Iterator[User]:
    program = _program(client.name)
    user = User(Hyp(tmp_path / "hyp"), tmp_path / "user", program)
    for name in (".claude", ".codex", "project"):
        (user.folder / name).mkdir(parents=True)
    (user.folder / ".codex" / "auth.json").write_text(json.dumps({"OPENAI_API_KEY": _KEY}))
    user.hyp.home.mkdir()
    (user.hyp.home / "config.toml").write_text(_CONFIG.format(port=port, upstream=stub.url))
    daemon = user.hyp.start("daemon", "run", **user.environment)
    try:
        eventually(lambda: _answers(port) or daemon.poll() is not None)
        assert user.hyp.run("client", "attach", client.name, **user.environment).code == 0
        yield user
        daemon.send_signal(signal.SIGTERM)
        _, told = daemon.communicate(timeout=PATIENCE)
        assert daemon.returncode == 0, told
    finally:
        if daemon.poll() is None:
            daemon.kill()
            daemon.communicate()
        user.hyp.run("client", "detach", client.name, **user.environment)
        _end_who_stands_by(Home(user.hyp.home))


def _end_who_stands_by(home: Home) -> None:
    """Stop the fallback: it would listen for another hour, for open sessions."""
    if (pid := locks.lock_holder(handover.fallback_lock_path(home))) is not None:
        os.kill(pid, signal.SIGTERM)
        wait_until_gone(pid)


@pytest.fixture
def port() -> Iterator[int]:
    """The gateway's port."""
    with held_port() as found:
        yield found


@pytest.mark.parametrize("client", [CLAUDE, CODEX], ids=lambda client: client.name)
def test_a_real_client_works_through_the_gateway_and_its_transcript_matches(
    client: Client, tmp_path: Path, port: int
) -> None:
    with UpstreamStub(Script().answer, tls=False) as stub, attached(client, tmp_path, stub, port) as user:
        assert LAST_WORD in user.says(*client.first)
        assert LAST_WORD in user.says(*client.then)
    home = Home(user.hyp.home)
    live = [readable(row) for row in reader.read_spooled_rows(home, MESSAGES)]
    raw = list(reader.read_spooled_rows(home, EXCHANGES))
    imported = _imported(client, user.folder)

    undecoded = {(row["method"], row["path"].partition("?")[0]) for row in raw if not row["decoded"]}
    assert undecoded <= ASIDE, f"nobody could read {undecoded - ASIDE}"
    assert len({row["session_id"] for row in live}) == 1
    assert {row["cwd"] for row in live} == {str(user.folder / "project")}
    pairs, live_only, imported_only = _joined(live, imported)
    assert not imported_only, [_told(row) for row in imported_only]
    assert all(_is_left_out(row) for row in live_only), [_told(row) for row in live_only]
    assert [_said(ours) for ours, _ in pairs] == [_said(theirs) for _, theirs in pairs]
    assert any(COMMAND.removeprefix("echo ") in (row.get("content_text") or "") for row in live if _is_result(row))

    try:
        report = user.hyp.ok("backfill", client.name, **user.environment)
        assert [each["status"] for each in report["providers"]] == ["ok"]
        user.hyp.ok("flush", **user.environment)
        told = "count(*) AS parts, count(DISTINCT part_id) AS ids"
        assert user.hyp.query(f"SELECT {told} FROM {MESSAGES}") == [{"parts": len(live), "ids": len(live)}]
        again = user.hyp.ok("reproject", **user.environment)
        assert (again["rows_written"], again["rows_projected"]) == (0, again["rows_duplicate"])
        assert again["exchanges"] == len(raw)
    finally:
        user.hyp.run("engine", "stop")


def _imported(client: Client, folder: Path) -> list[Row]:
    found: dict[str, Row] = {}
    for path in sorted(folder.glob(client.transcripts)):
        for row in rows_of(client.provider, path, quiet=True)[0]:
            found.setdefault(row["part_id"], row)
    return list(found.values())


def _joined(live: list[Row], imported: list[Row]) -> tuple[list[tuple[Row, Row]], list[Row], list[Row]]:
    """Return (matched rows, unmatched live rows, unmatched imported rows)."""
    waiting = sorted(live, key=lambda row: row["message_created_at"])
    pairs, imported_only = [], []
    for row in sorted(imported, key=lambda row: row["message_created_at"]):
        keys = set(list_match_keys(row))
        twin = next((each for each in waiting if not keys.isdisjoint(list_match_keys(each))), None)
        if twin is None:
            imported_only.append(row)
        else:
            waiting.remove(twin)
            pairs.append((twin, row))
    return pairs, waiting, imported_only


def _is_left_out(row: Row) -> bool:
    """Return whether transcripts omit it: reminders and the client's notes to the model."""
    return row.get("attachment_type") == "system_reminder" or row["role"] in ("system", "developer")


def _said(row: Row) -> tuple[Any, ...]:
    return row["session_id"], row["role"], row["part_type"], row.get("tool_name"), row.get("tool_args")


def _told(row: Row) -> tuple[Any, ...]:
    return row["role"], row["part_type"], row.get("provider_type"), (row.get("content_text") or "")[:120]


def _is_result(row: Row) -> bool:
    return bool(row["part_type"] == "tool_result")
