"""Any bytes, and any JSON in any place of a session of the clients that write JSON lines, can be imported."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypaware.clients.client import Provider
from hypaware.clients.copilot.history import CopilotHistory
from hypaware.clients.gemini.history import GeminiHistory
from hypaware.clients.qwen.history import QwenHistory
from tests.support.history import rows_of
from tests.support.strategies import json_values

SCALE = 5 * int(os.environ["HYP_SOAK"]) if "HYP_SOAK" in os.environ else 1
PROVIDERS = pytest.mark.parametrize(
    ("provider", "name"),
    [(QwenHistory(), "s1.jsonl"), (GeminiHistory(), "session-1.jsonl"), (CopilotHistory(), "events.jsonl")],
    ids=["qwen", "gemini", "copilot"],
)
PART = {
    "text": "x",
    "thought": True,
    "functionCall": {"id": "c", "name": "f", "args": {}},
    "functionResponse": {"id": "c", "response": {"output": "x"}},
    "inlineData": {"mimeType": "image/png"},
}
LINE: dict[str, Any] = {
    "uuid": "u1",
    "parentUuid": "u0",
    "id": "m1",
    "sessionId": "s1",
    "timestamp": "2026-11-15T07:00:00Z",
    "content": [PART],
    "message": {"parts": [PART]},
    "thoughts": [{"subject": "a"}],
    "toolCalls": [{"id": "c", "name": "f", "result": [PART]}],
    "tokens": {"input": 1, "total": 2},
    "usageMetadata": {"promptTokenCount": 1},
    "systemPayload": {"uiEvent": {"event.name": "qwen-code.api_error"}},
    "data": {
        "content": "x",
        "reasoningText": "x",
        "toolRequests": [{"toolCallId": "c", "name": "f", "arguments": {}}],
        "apiCallId": "a",
        "usage": {"apiCallId": "a", "inputTokens": 1},
        "result": {"content": "x"},
        "context": {"cwd": "/nonexistent"},
    },
    "$set": {"messages": [{"id": "m2", "type": "user", "content": "x"}]},
}


TYPES = [
    *("user", "assistant", "tool_result", "system", "gemini", "error", "user.message", "assistant.message"),
    *("tool.execution_complete", "session.usage_record", "session.start", "session.error"),
]


@st.composite
def _lines(draw: st.DrawFn) -> bytes:
    """Generate a line of a client with some fields, of which one may have any value."""
    value: dict[str, Any] = {name: LINE[name] for name in draw(st.sets(st.sampled_from(sorted(LINE))))}
    value["type"] = draw(st.sampled_from(TYPES))
    value[draw(st.sampled_from(sorted(value)))] = draw(json_values)
    if draw(st.booleans()):
        part = {name: PART[name] for name in draw(st.sets(st.sampled_from(sorted(PART))))}
        part[draw(st.sampled_from([*part, "text"]))] = draw(json_values)
        value["content"], value["message"] = [part], {"parts": [part]}
    if draw(st.booleans()):
        value["data"] = {**LINE["data"], draw(st.sampled_from(sorted(LINE["data"]))): draw(json_values)}
    return json.dumps(value).encode() + b"\n"


@pytest.mark.hazard(60)
@PROVIDERS
@settings(max_examples=60 * SCALE, deadline=None)
@given(data=st.lists(_lines() | st.binary(max_size=20).map(lambda raw: raw + b"\n"), max_size=6).map(b"".join))
def test_any_lines_can_be_imported(provider: Provider, name: str, data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chats" / name
        path.parent.mkdir()
        path.write_bytes(data)
        first, reading = rows_of(provider, path)
        again, _ = rows_of(provider, path)
    assert first == again
    assert len({row["part_id"] for row in first}) == len(first)
    assert reading.consumed <= len(data)


@pytest.mark.hazard(60)
@PROVIDERS
def test_bad_lines_are_counted_and_the_others_are_read(tmp_path: Path, provider: Provider, name: str) -> None:
    path = tmp_path / "chats" / name
    path.parent.mkdir()
    good = {"uuid": "u1", "id": "m1", "type": "user", "content": "Hello", "message": {"parts": [{"text": "Hello"}]}}
    if name == "events.jsonl":
        good |= {"type": "user.message", "data": {"content": "Hello"}}
    deep = b'{"type":"user","content":' + b"[" * 3000 + b"]" * 3000 + b"}"
    path.write_bytes(b"\n".join([b"\0\0", b'"text"', b"{", deep, b"\xff\xfe", json.dumps(good).encode()]) + b"\n")

    rows, reading = rows_of(provider, path)
    assert [row["content_text"] for row in rows] == ["Hello"]
    assert dict(reading.skipped) == {
        "nul_bytes": 1,
        "not_an_object": 1,
        "not_json": 1,
        "nested_too_deeply": 1,
        "not_utf8": 1,
    }
