"""Gemini CLI: where its sessions are, versions of a message, and both forms of a file."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hypaware.clients import reader
from hypaware.clients.client import Source
from hypaware.clients.gemini.history import GeminiHistory
from hypaware.model import canonical
from hypaware.model.datasets import Row
from tests.support.history import GrowingFile, rows_of, usage

PROVIDER = GeminiHistory()
META = {"sessionId": "s1", "projectHash": "0a1b", "startTime": "2026-11-15T07:00:00.000Z", "kind": "main"}
CALL = {"id": "c1", "name": "shell", "args": {"command": "ls"}, "status": "success"}
RESULT = [{"functionResponse": {"id": "c1", "name": "shell", "response": {"output": "a b"}}}]


def message(key: str, kind: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"id": key, "timestamp": "2026-11-15T07:00:01.000Z", "type": kind, "content": content, **more}


def as_bytes(*lines: Any) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "shop" / "chats").mkdir(parents=True)
    return tmp_path / "shop" / "chats" / "session-2026-11-15T07-00-s1.jsonl"


def read(path: Path, *lines: Any, **pinned: Any) -> tuple[list[Row], dict[str, int]]:
    path.write_bytes(as_bytes(*lines))
    rows, reading = rows_of(PROVIDER, path, **pinned)
    return rows, dict(reading.skipped)


def test_sessions_and_subagents_are_found(tmp_path: Path) -> None:
    top = tmp_path / ".gemini" / "tmp" / "shop"
    names = ["chats/s1/b.jsonl", "chats/session-a.json", "chats/session-b.jsonl"]
    for name in (*names, "logs.json", "chats/session-b.jsonl.tmp-1", "chats/other.jsonl"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).touch()

    for environment in ({"HOME": str(tmp_path)}, {"HOME": "/nonexistent", "GEMINI_CLI_HOME": str(tmp_path)}):
        found = [each.path for each in PROVIDER.find(environment) if isinstance(each, Source)]
        assert sorted(found) == [top / name for name in names]


def test_a_later_version_of_a_message_replaces_it(path: Path) -> None:
    first = message("m2", "gemini", "I look.", model="g", tokens={"input": 5, "output": 1, "total": 6})
    rows, _ = read(
        path,
        META,
        message("m1", "user", [{"text": "Look"}]),
        first,
        {**first, "toolCalls": [{**CALL, "result": RESULT}]},
        message("m3", "user", RESULT),
    )

    assert [(row["role"], row["part_type"]) for row in rows] == [
        ("user", "text"),
        ("assistant", "text"),
        ("assistant", "tool_call"),
        ("tool", "tool_result"),
    ]
    assert rows[1]["attributes"]["usage"]["input_tokens"] == 5
    assert "usage" not in rows[2]["attributes"]


def test_a_result_that_is_only_in_its_call_is_recorded(path: Path) -> None:
    failed = {**CALL, "id": "c2", "status": "error", "result": [{"functionResponse": {"id": "c2", "response": {}}}]}
    rows, _ = read(path, META, message("m1", "gemini", "", toolCalls=[{**CALL, "result": RESULT}, failed]))

    assert [(row["part_type"], row["tool_call_id"]) for row in rows] == [
        ("tool_call", "c1"),
        ("tool_call", "c2"),
        ("tool_result", "c1"),
        ("tool_result", "c2"),
    ]
    assert [row.get("is_error") for row in rows[2:]] == [None, True]


def test_a_result_that_a_resumed_session_repeats_is_recorded_once(path: Path) -> None:
    lines = [META, message("m1", "gemini", "x", toolCalls=[CALL]), message("m2", "user", RESULT)]
    rows, _ = read(path, *lines, message("m1_response", "user", RESULT))

    assert [row["provider_uuid"] for row in rows if row["part_type"] == "tool_result"] == ["m2"]


def test_the_last_response_is_held_back_while_the_file_is_written(path: Path) -> None:
    file = GrowingFile(PROVIDER, path)
    start, call = as_bytes(META, message("m1", "gemini", "x")), as_bytes(message("m1", "gemini", "x", toolCalls=[CALL]))

    assert file.grow_to(start, quiet=False) == []
    assert file.held == {"m1"}
    assert file.grow_to(start + call, quiet=False) == []
    rows = file.grow_to(start + call + as_bytes(message("m2", "user", RESULT)), quiet=False)
    assert [row["part_type"] for row in rows] == ["text", "tool_call", "tool_result"]
    assert file.held == frozenset()


def test_calls_that_follow_a_recorded_text_do_not_count_its_tokens_again(path: Path) -> None:
    file = GrowingFile(PROVIDER, path)
    text = message("m1", "gemini", "x", tokens={"input": 5, "output": 1, "total": 6})
    file.grow_to(as_bytes(META, text), quiet=True)
    file.grow_to(as_bytes(META, text, {**text, "toolCalls": [{**CALL, "result": RESULT}]}), quiet=True)
    file.grow_to(file.path.read_bytes() + as_bytes(message("m2", "user", RESULT)), quiet=True)

    kept = {row["part_id"]: row for row in reversed(file.rows)}
    assert Counter(row["part_type"] for row in kept.values()) == {"text": 1, "tool_call": 1, "tool_result": 1}
    assert usage(kept.values())["input_tokens"] == 5


def test_messages_in_a_set_are_read_and_the_summary_is_the_title(path: Path) -> None:
    context = message("m0", "user", [{"text": "<session_context>\nToday …"}])
    path.write_bytes(as_bytes(META, {"$set": {"messages": [context, 7], "summary": "Shopping"}}, {"$rewindTo": "m0"}))
    rows, reading = rows_of(PROVIDER, path)

    assert [(row["role"], row["message_id"]) for row in rows] == [("system", "m0")]
    assert [(each.kind, each.title, each.session_id) for each in reading.titles] == [("client", "Shopping", "s1")]
    assert dict(reading.skipped) == {"bookkeeping": 1}


@pytest.mark.hazard(60)
def test_a_long_list_of_messages_is_parsed_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_MAX_KEPT_BYTES", 100)
    parsed, loads = Counter[int](), canonical.loads
    monkeypatch.setattr(canonical, "loads", lambda raw: parsed.update([len(raw)]) or loads(raw))
    messages = [message(f"m{number}", "user", "x") for number in range(500)]
    rows, _ = read(path, META, {"$set": {"messages": messages}})

    assert len(rows) == 500
    assert parsed[max(parsed)] <= 3


def test_a_document_of_an_old_version_gives_the_same_rows(path: Path) -> None:
    lines = [message("m1", "user", "Look"), message("m2", "gemini", "x", toolCalls=[{**CALL, "result": RESULT}])]
    expected, _ = read(path, META, *lines)
    document = path.with_suffix(".json")
    document.write_text(json.dumps({**META, "messages": lines}, indent=2))
    rows, _ = rows_of(PROVIDER, document)

    assert [row["part_id"] for row in rows] == [row["part_id"] for row in expected]
    assert len(rows) == 4


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"messages": 7}', b'{"messages": [7, {"type": "user"}]}', b"\0"])
def test_a_document_that_is_not_a_session_is_counted(path: Path, content: bytes) -> None:
    document = path.with_suffix(".json")
    document.write_bytes(content)

    rows, _ = rows_of(PROVIDER, document)
    assert rows == []


def test_the_folder_of_the_project_is_recorded(path: Path) -> None:
    (path.parents[1] / ".project_root").write_text("/nonexistent/shop")
    rows, _ = read(path, META, message("m1", "user", "Look"))
    assert rows[0]["cwd"] == "/nonexistent/shop"


def test_a_subagent_belongs_to_the_session_that_names_its_folder(path: Path) -> None:
    nested = path.parent / "s1" / "agent-7.jsonl"
    nested.parent.mkdir()
    rows, _ = read(nested, {**META, "sessionId": "agent-7", "kind": "subagent"}, message("m1", "user", "Look"))

    assert (rows[0]["session_id"], rows[0]["conversation_id"], rows[0]["is_sidechain"]) == ("s1", "agent-7", True)
    assert PROVIDER.session_of(nested, b"") == "s1"


def test_errors_and_notices_are_recorded(path: Path) -> None:
    rows, _ = read(path, META, message("m1", "error", "It broke"), message("m2", "info", "Hello"))

    assert [(row["role"], row["part_type"], row["content_text"]) for row in rows] == [
        ("system", "error", "It broke"),
        ("system", "text", "Hello"),
    ]
