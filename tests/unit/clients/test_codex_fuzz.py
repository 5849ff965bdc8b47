"""Any bytes, and any JSON in any place, can be imported, at once or in several steps while the file grows."""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.codex_rollouts import BEGIN, NAME, PROVIDER, add, as_bytes, counts
from tests.support.history import GrowingFile, rows_of, usage
from tests.support.strategies import json_values

# A soak of 25 is more than 100,000 files.
SCALE = 5 * int(os.environ["HYP_SOAK"]) if "HYP_SOAK" in os.environ else 1

_counts = st.integers(0, 3).map(counts) | json_values
_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "role": st.sampled_from(["user", "assistant"]),
    "content": st.text(max_size=3) | st.just([{"type": "input_text", "text": "x"}]),
    "summary": st.just([{"type": "summary_text", "text": "Hm."}]),
    "id": st.sampled_from(["m1", "m2", "m3"]),
    "call_id": st.sampled_from(["c1", "c2"]),
    "name": st.just("f"),
    "arguments": st.just("{}"),
    "output": st.text(max_size=3),
    "response_id": st.sampled_from(["r1", "r2"]),
    "info": st.fixed_dictionaries({"last_token_usage": _counts, "total_token_usage": _counts}),
    "usage": _counts,
    "thread_token_usage": _counts,
    "timestamp": st.just("2026-11-15T07:16:29Z"),
    "cwd": st.just("/home/dev"),
    "git": st.just({"branch": "main"}),
    "sandbox_policy": st.just({"type": "read-only"}),
    "forked_from_id": st.just("t0"),
    "subagent_history_start_ordinal": st.integers(0, 3),
}
_ITEMS = ("message", "reasoning", "function_call", "custom_tool_call", "function_call_output", "token_count")
_KINDS = ("session_meta", "turn_context", "response_item", "response_item", "event_msg", "token_usage_record", "other")


@st.composite
def _lines(draw: st.DrawFn) -> bytes:
    """Generate a line of a client, often with one value replaced."""
    payload: dict[str, Any] = {"type": draw(st.sampled_from(_ITEMS))}
    for name in draw(st.sets(st.sampled_from(sorted(_FIELDS)), max_size=8)):
        payload[name] = draw(_FIELDS[name])
    value = {"timestamp": "2026-11-15T07:16:30Z", "type": draw(st.sampled_from(_KINDS)), "payload": payload}
    place: dict[str, Any] = draw(st.sampled_from([{}, value, payload, payload]))
    place[draw(st.sampled_from([*place, "ordinal"]))] = draw(json_values)
    return json.dumps(value).encode() + b"\n"


_anything = st.lists(
    _lines()
    | _lines()
    | _lines()
    | json_values.map(lambda value: json.dumps(value).encode() + b"\n")
    | st.binary(max_size=9),
    max_size=12,
)


def _said(role: str) -> st.SearchStrategy[dict[str, Any]]:
    """Generate a message that often repeats another."""
    return st.fixed_dictionaries(
        {"type": st.just("message"), "role": st.just(role), "content": st.sampled_from(["a", "b"])},
        optional={"id": st.uuids().map(str)},
    )


_calls = st.fixed_dictionaries(
    {"type": st.sampled_from(["function_call", "function_call_output"]), "call_id": st.just("c1"), "name": st.just("f")}
)
_thoughts = st.just({"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]})
_payloads = st.one_of(
    _said("user"), _said("assistant"), _said("assistant"), _calls, _thoughts, st.just(None), st.just(None)
)


@st.composite
def _conversations(draw: st.DrawFn, compactions: bool) -> bytes:
    """Generate a thread of a client: the running total grows with every response, and snapshots repeat.

    With compactions there are also counts without a preceding message of the model.
    """
    lines: list[Any] = [*BEGIN]
    total: Counter[str] = Counter()
    last = counts(0)
    answered = False
    for payload in draw(st.lists(_payloads, max_size=14)):
        if payload is not None:
            lines.append({"type": "response_item", "payload": payload})
            answered = (answered and payload.get("role") != "user") or _can_carry(payload)
            continue
        kind = draw(st.sampled_from(["response", "record", "repeated"]))
        if kind != "repeated" and (answered or compactions):
            last = counts(draw(st.integers(1, 5)))
            total.update(last)
            answered = False
            if kind == "record":
                payload = {"response_id": f"r{total['total_tokens']}", "usage": last, "thread_token_usage": dict(total)}
                lines.append({"type": "token_usage_record", "payload": payload})
        info = {"total_token_usage": dict(total), "last_token_usage": last} if total else None
        lines.append({"type": "event_msg", "payload": {"type": "token_count", "info": info}})
    return as_bytes(lines)


def _can_carry(payload: dict[str, Any]) -> bool:
    return payload.get("role") == "assistant" or payload["type"] == "function_call"


@pytest.mark.hazard(60)
@settings(max_examples=300 * SCALE)
@given(_anything)
def test_anything_can_be_imported(pieces: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / NAME
        path.write_bytes(b"".join(pieces))
        rows, reading = rows_of(PROVIDER, path)

        assert len({row["part_id"] for row in rows}) == len(rows)
        assert len(rows) <= reading.source.size
        assert not reading.held - {key for key in reading.held if key.isdigit()}


@pytest.mark.hazard(60)
@settings(max_examples=150 * SCALE)
@given(_anything, st.data())
def test_anything_can_be_imported_in_several_steps(pieces: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(pieces)
    with tempfile.TemporaryDirectory() as folder:
        file = GrowingFile(PROVIDER, Path(folder) / NAME)
        for cut in sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=3))):
            file.grow_to(whole[:cut], quiet=data.draw(st.booleans()))
        file.grow_to(whole, quiet=True)

        assert len({row["part_id"] for row in file.rows}) == len(file.rows)


@pytest.mark.hazard(52)
@pytest.mark.hazard(96)
@settings(max_examples=200 * SCALE)
@given(_conversations(compactions=False), st.data())
def test_several_imports_of_a_conversation_give_the_rows_of_one(whole: bytes, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / NAME
        path.write_bytes(whole)
        at_once, _ = rows_of(PROVIDER, path)
        path.unlink()
        file = GrowingFile(PROVIDER, path)
        for cut in sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=4))):
            file.grow_to(whole[:cut], quiet=False)
        file.grow_to(whole, quiet=True)

        assert {row["part_id"]: row for row in file.rows} == {row["part_id"]: row for row in at_once}
        assert len(file.rows) == len(at_once)


@pytest.mark.hazard(52)
@pytest.mark.hazard(96)
@settings(max_examples=200 * SCALE)
@given(_conversations(compactions=True), st.data())
def test_pauses_at_any_place_duplicate_no_row_and_no_token(whole: bytes, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / NAME
        path.write_bytes(whole)
        at_once, reading = rows_of(PROVIDER, path)
        path.unlink()
        file = GrowingFile(PROVIDER, path)
        for cut in sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=4))):
            file.grow_to(whole[:cut], quiet=data.draw(st.booleans()))
        file.grow_to(whole, quiet=True)
        add(
            file,
            {"type": "response_item", "payload": {"type": "message", "role": "assistant", "content": "End."}},
            quiet=True,
        )

        assert sorted(row["part_id"] for row in file.rows[:-1]) == sorted(row["part_id"] for row in at_once)
        assert not file.held
        # Counts that a pause separated from their message are dropped and reported.
        dropped = file.skipped["usage_without_message"] - reading.skipped["usage_without_message"]
        assert dropped >= 0
        assert usage(file.rows)["total_tokens"] <= usage(at_once)["total_tokens"]
        if not dropped:
            assert usage(file.rows) == usage(at_once)
