"""The real Claude Code and Codex, attached with `hyp client attach`, through the gateway of `hyp daemon run`.

Tested with Claude Code 2.1.197 and 2.1.325 and Codex 0.166.0; `tests.support.real_clients` says how they are run.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hypaware.home import Home
from hypaware.model.datasets import Row
from hypaware.model.match_keys import list_match_keys
from hypaware.model.schemas import GATEWAY_TYPE
from hypaware.spool import reader
from tests.support import many_tools
from tests.support.client_script import BEGUN_TOKENS, COMMAND, LAST_WORD, WHOLE_TOKENS, Script
from tests.support.history import readable, rows_of
from tests.support.ports import held_port
from tests.support.raw_exchanges import EXCHANGES, MESSAGES
from tests.support.real_clients import (
    CLAUDE,
    CODEX,
    FREELY,
    NOT_FOLLOWED,
    Client,
    User,
    attach,
    attached,
    detach,
    running_daemon,
    user_of,
)
from tests.support.upstream_stub import ReceivedRequest, StubResponse

pytestmark = pytest.mark.real_clients

_LOOSE_ENDS = f"""
SELECT part_id, previous_message_id FROM {MESSAGES}
WHERE get_json_object(previous_message_id, '$[0]') NOT IN (SELECT message_id FROM {MESSAGES})
"""
ASIDE = {("HEAD", "/"), ("GET", "/v1/models"), ("GET", "/backend-api/codex/models")}
"""Calls of the clients that hold no conversation and that nobody decodes."""


@pytest.fixture
def port() -> Iterator[int]:
    """The gateway's port."""
    with held_port() as found:
        yield found


@pytest.mark.parametrize("client", [CLAUDE, CODEX], ids=lambda client: client.name)
def test_a_real_client_works_through_the_gateway_and_its_transcript_matches(
    client: Client, tmp_path: Path, port: int
) -> None:
    with attached(client, tmp_path, Script().answer, port) as user:
        assert LAST_WORD in user.says(*client.first)
        assert LAST_WORD in user.says(*client.then)
    home = Home(user.hyp.home)
    live = _live(home)
    raw = list(reader.read_spooled_rows(home, EXCHANGES))
    imported = _imported(client, user.folder)

    undecoded = {(row["method"], row["path"].partition("?")[0]) for row in raw if not row["decoded"]}
    assert undecoded <= ASIDE, f"nobody could read {undecoded - ASIDE}"
    assert len({row["session_id"] for row in live}) == 1
    assert {row["cwd"] for row in live} == {str(user.folder / "project")}
    pairs, live_only, imported_only = _joined(live, imported)
    assert not imported_only, [_told(row) for row in imported_only]
    assert all(row["provider_type"] == GATEWAY_TYPE for row in live_only), [_told(row) for row in live_only]
    assert [_said(ours) for ours, _ in pairs] == [_said(theirs) for _, theirs in pairs]
    assert any(COMMAND.removeprefix("echo ") in (row.get("content_text") or "") for row in live if _is_result(row))

    try:
        report = user.hyp.ok("backfill", client.name, **user.environment)
        assert [each["status"] for each in report["providers"]] == ["ok"]
        user.hyp.ok("flush", **user.environment)
        told = "count(*) AS parts, count(DISTINCT part_id) AS ids"
        assert user.hyp.query(f"SELECT {told} FROM {MESSAGES}") == [{"parts": len(live), "ids": len(live)}]
        user.hyp.ok("maintain", **user.environment)
        counted = user.hyp.ok("query", "overview", **user.environment)["totals"]
        messages = len({row["message_id"] for row in imported})
        assert (counted["messages"], counted["parts"]) == (messages, len(imported))
        assert user.hyp.query(_LOOSE_ENDS) == []
        checks = user.hyp.ok("verify", "--deep", **user.environment)["checks"]
        assert [each["detail"] for each in checks if each["name"] == "links" and each["dataset"] == MESSAGES] == [
            "0 links lead to replaced ids until the next compaction, 0 lead to no row"
        ]
        again = user.hyp.ok("reproject", **user.environment)
        assert (again["rows_written"], again["rows_projected"]) == (0, again["rows_duplicate"])
        assert again["exchanges"] == len(raw)
    finally:
        user.hyp.run("engine", "stop")


@pytest.mark.hazard(67)
@pytest.mark.hazard(105)
@pytest.mark.parametrize("recorded_by", ["gateway and follow", "gateway, then import"])
def test_rows_that_count_are_those_of_the_import_after_cut_responses_and_a_compaction(
    recorded_by: str, tmp_path: Path, port: int
) -> None:
    """One response is cut before its first block, one in the middle of a block. The client asks again, in some way."""
    script, cuts, tokens = Script(), list[int](), list[int]()

    def answer(request: ReceivedRequest) -> StubResponse:
        found = script.answer(request)
        if not request.target.partition("?")[0].endswith("/v1/messages"):
            return found
        body = json.loads(request.body)
        if cuts and body.get("stream") and _is_answer_to_a_tool(body):
            found = replace(found, pieces=tuple(found.pieces)[: cuts.pop()], cut="body")
            tokens.append(BEGUN_TOKENS)
        else:
            tokens.append(WHOLE_TOKENS)
        return found

    follow = "" if "follow" in recorded_by else NOT_FOLLOWED.format(client="claude")
    with user_of(CLAUDE, tmp_path, answer) as user, running_daemon(user, port, follow):
        attach(user)
        cuts.append(1)
        assert LAST_WORD in user.says(*CLAUDE.first)
        user.says("-p", "--continue", "--", "/compact")
        cuts.append(3)
        assert LAST_WORD in user.says(*CLAUDE.then)
        assert not cuts
    live = _live(Home(user.hyp.home))
    imported = _imported(CLAUDE, user.folder)

    pairs, live_only, imported_only = _joined(live, imported)
    assert not imported_only, [_told(row) for row in imported_only]
    assert len(pairs) == len(imported)
    assert all(row["provider_type"] == GATEWAY_TYPE for row in live_only), [_told(row) for row in live_only]
    costs = Counter(row["provider_subtype"] for row in live_only if "usage" in row["attributes"])
    assert costs.keys() == {"no_output", "unfinished", "compaction"}
    assert (costs["no_output"], costs["unfinished"]) == (1, 1)
    try:
        for command in (("flush",), ("backfill", "claude"), ("maintain", "--compact-only")):
            user.hyp.ok(*command, **user.environment)
        counted = "CAST(sum(get_json_object(attributes, '$.usage.output_tokens')) AS INT)"
        assert user.hyp.query(f"SELECT {counted} AS tokens FROM {MESSAGES}") == [{"tokens": sum(tokens)}]
    finally:
        user.hyp.run("engine", "stop")


def _is_answer_to_a_tool(body: dict[str, Any]) -> bool:
    """Whether the request ends with the result of a tool."""
    content = body["messages"][-1]["content"]
    return isinstance(content, list) and any(block.get("type") == "tool_result" for block in content)


@pytest.mark.hazard(111)
def test_claude_code_sends_the_same_requests_attached_and_not(tmp_path: Path, port: int) -> None:
    """Whole requests, with an MCP server of sixty tools: behind an unknown base URL the client declares all of them."""
    with user_of(CLAUDE, tmp_path, Script().answer) as user, running_daemon(user, port):
        servers = {"many": {"command": sys.executable, "args": [many_tools.__file__]}}
        (user.folder / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
        user.says("-p", "--", "The first run of a client sends requests of its own.")
        requests = {}
        for way in ("direct", "attached"):
            if way == "attached":
                attach(user)
            user.stub.answer, first = Script().answer, len(user.stub.seen)
            run = ("--mcp-config", str(user.folder / "mcp.json"), *CLAUDE.first)
            assert LAST_WORD in user.says(*run)
            requests[way] = [each for each in user.stub.seen[first:] if each.target.startswith("/v1/messages")]
    directly, through = requests["direct"], requests["attached"]
    recorded = [row["path"] for row in reader.read_spooled_rows(Home(user.hyp.home), EXCHANGES) if row["decoded"]]
    assert len(directly) == len(recorded) == 2
    assert "tool_59" in directly[0].body.decode()
    assert [_comparable(each) for each in through] == [_comparable(each) for each in directly]
    for one, other in zip(directly, through, strict=True):
        betas, betas_through = (set(str(each.header("anthropic-beta")).split(",")) for each in (one, other))
        assert betas_through <= betas
        assert {name.rpartition("-20")[0] for name in betas - betas_through} <= {"mid-conversation-system-clear-at"}


def _comparable(request: ReceivedRequest) -> tuple[Any, ...]:
    """Return the request without its random ids and the hash of its body, and without its host and betas."""
    changing = ("host", "connection", "anthropic-beta", "x-claude-code-prev-tool-durations")
    headers = [(name.lower(), _without_ids(value)) for name, value in request.headers if name.lower() not in changing]
    return request.method, request.target, sorted(headers), _without_ids(request.body.decode())


def _without_ids(text: str) -> str:
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", text)
    return re.sub(r"\bcch=[0-9a-f]+", "cch=HASH", text)


@pytest.mark.hazard(111)
@pytest.mark.parametrize("login", ["api key", "chatgpt"])
def test_codex_resumes_sessions_of_before_during_and_after_attach_in_all_orders(
    login: str, tmp_path: Path, port: int
) -> None:
    with user_of(CODEX, tmp_path, Script().answer) as user, running_daemon(user, port):
        if login == "chatgpt":
            user.log_in_with_chatgpt()
            # Without a URL of its own, an unattached Codex asks chatgpt.com for the backend of the account.
            own = f'openai_base_url = "{user.stub.url}/own"\n'
            (user.folder / ".codex" / "config.toml").write_text(own)
        sessions: list[str] = []
        for is_attached in (False, True, False, True):
            (attach if is_attached else detach)(user)
            assert LAST_WORD in user.says("exec", *FREELY, "A new session.")
            (created,) = {*_sessions(user)} - {*sessions}
            sessions.append(created)
            for session in sessions:
                assert LAST_WORD in user.says("exec", "resume", session, *FREELY, "Go on.")
            assert LAST_WORD in user.says("exec", "resume", "--last", *FREELY, "Go on.")
        assert _sessions(user) == dict.fromkeys(sessions, "openai"), "resuming never began another session"
    home = Home(user.hyp.home)
    raw = [row for row in reader.read_spooled_rows(home, EXCHANGES) if row["path"].endswith("/responses")]
    assert {row["decoded"] for row in raw} == {True}
    assert {row["method"] for row in raw} == {"POST"}
    # A new session and its prompt, and then each session and the last one again; two requests each.
    assert len(raw) == 2 * (1 + 2 + 1) + 2 * (1 + 4 + 1)
    assert {row["session_id"] for row in reader.read_spooled_rows(home, MESSAGES)} == {*sessions}


@pytest.mark.hazard(111)
def test_codex_with_a_chatgpt_login_is_recorded_although_it_compresses_its_requests(tmp_path: Path, port: int) -> None:
    with user_of(CODEX, tmp_path, Script().answer) as user, running_daemon(user, port):
        user.log_in_with_chatgpt()
        attach(user)
        assert LAST_WORD in user.says(*CODEX.first)
        sent = [each for each in user.stub.seen if each.target.endswith("/responses")]
    home = Home(user.hyp.home)
    raw = [row for row in reader.read_spooled_rows(home, EXCHANGES) if row["path"].endswith("/responses")]
    assert [(each.method, each.header("host"), each.header("content-encoding")) for each in sent] == [
        ("POST", "chatgpt.com", "zstd")
    ] * 2
    assert [(row["path"], row["decoded"], row.get("error")) for row in raw] == [
        ("/backend-api/codex/responses", True, None)
    ] * 2
    said = [readable(row).get("content_text") for row in reader.read_spooled_rows(home, MESSAGES)]
    assert CODEX.first[-1] in said
    assert LAST_WORD in said


def _sessions(user: User) -> dict[str, str]:
    """Return the provider of each session of Codex."""
    found = {}
    for path in sorted(user.folder.glob(CODEX.transcripts)):
        meta = json.loads(path.read_text().partition("\n")[0])["payload"]
        found[meta["id"]] = meta["model_provider"]
    return found


@pytest.mark.hazard(111)
def test_sessions_of_an_earlier_attach_are_named_and_continue_as_forks(tmp_path: Path, port: int) -> None:
    """Earlier versions added a provider to Codex. It refuses to resume a session whose provider is gone."""
    with user_of(CODEX, tmp_path, Script().answer) as user, running_daemon(user, port):
        config = user.folder / ".codex" / "config.toml"
        lines = ['model_provider = "hypaware"', "[model_providers.hypaware]", 'name = "OpenAI through HypAware"']
        lines += [f'base_url = "http://127.0.0.1:{port}/codex/v1"', "requires_openai_auth = true"]
        lines += ['wire_api = "responses"', "supports_websockets = false", ""]
        config.write_text("\n".join(lines))
        assert LAST_WORD in user.says(*CODEX.first)
        (old,) = _sessions(user)
        (note,) = attach(user)["notes"]
        assert f"codex fork ID`: {old}" in note
        assert "hypaware]" not in config.read_text()
        with pytest.raises(AssertionError, match="no longer configured"):
            user.says("exec", "resume", old, *FREELY, "Go on.")
        assert LAST_WORD in user.says("exec", "fork", old, *FREELY, "Go on.")
        (fork,) = {*_sessions(user)} - {old}
        assert _sessions(user)[fork] == "openai"
        detach(user)
        assert LAST_WORD in user.says("exec", "resume", fork, *FREELY, "Go on.")


def _live(home: Home) -> list[Row]:
    """Return the rows that the gateway recorded; the daemon follows the transcript of an attached client too."""
    rows = map(readable, reader.read_spooled_rows(home, MESSAGES))
    return [row for row in rows if row["attributes"]["gateway"]["source"] == "live"]


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


def _said(row: Row) -> tuple[Any, ...]:
    return row["session_id"], row["role"], row["part_type"], row.get("tool_name"), row.get("tool_args")


def _told(row: Row) -> tuple[Any, ...]:
    return row["role"], row["part_type"], row.get("provider_type"), (row.get("content_text") or "")[:120]


def _is_result(row: Row) -> bool:
    return bool(row["part_type"] == "tool_result")
