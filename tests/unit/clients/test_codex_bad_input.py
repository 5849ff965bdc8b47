"""Invalid rollouts: bad parts are counted, nothing raises, and nothing else is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hypaware.clients.reader import SourceChanged, SourceReader
from tests.support.codex_rollouts import (
    BEGIN,
    NAME,
    PROVIDER,
    as_bytes,
    counts,
    imported,
    item,
    line,
    meta,
    says,
    snapshot,
    turn,
)
from tests.support.history import NOWHERE, pin, rows_of

END = (says("assistant", "Yes."), snapshot(counts(100), counts(100)))
DEEP = "[" * 5000 + "]" * 5000
FACTS = (
    *("id", "session_id", "timestamp", "cwd", "git", "originator", "cli_version", "thread_source", "source"),
    *("model_provider", "parent_thread_id", "forked_from_id", "history_base", "subagent_history_start_ordinal"),
)
# JSON values of every wrong type.
WRONG: list[Any] = [None, True, 7, -1.5, 2**80, "", "text", [], [[1]], {}, {"a": {"b": None}}, "\u0000", "\u202e"]


@pytest.mark.hazard(60)
@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"garbage\n", "not_json"),
        (b'{"type": "response_item", "payl\n', "not_json"),
        (b"\xff\xfe\xff\n", "not_utf8"),
        (b'{"type": "\xc3("}\n', "not_utf8"),
        (b"\x00\x00\x00\x00\n", "nul_bytes"),
        (b'{"a": NaN}\n', "not_json"),
        (b'{"a": "\\ud800"}\n', "not_json"),
        (b'"text"\n', "not_an_object"),
        (b"[1, 2]\n", "not_an_object"),
        (b'{"payload": {"type": "message"}}\n', "unknown_type:none"),
        (b'{"type": ["response_item"], "payload": {}}\n', "unknown_type:none"),
        (b'{"type": "response_item"}\n', "no_payload"),
        (b'{"type": "response_item", "payload": "text"}\n', "no_payload"),
        (b'{"type": "session_meta", "payload": []}\n', "no_payload"),
    ],
)
def test_a_bad_line_is_counted_and_the_others_are_imported(tmp_path: Path, raw: bytes, reason: str) -> None:
    rows, reading = imported(tmp_path, [*BEGIN, raw, *END])

    assert [row["content_text"] for row in rows] == ["Do it.", "Yes."]
    assert reading.skipped == {reason: 1}


@pytest.mark.hazard(60)
def test_a_deeply_nested_line_is_counted_and_the_others_are_imported(tmp_path: Path) -> None:
    rows, reading = imported(tmp_path, [*BEGIN, DEEP.encode() + b"\n", *END])
    assert (len(rows), reading.skipped.total()) == (2, 1)


@pytest.mark.parametrize("raw", [b"\n", b"  \r\n", b"\n\n\n"])
def test_empty_lines_are_ignored(tmp_path: Path, raw: bytes) -> None:
    rows, reading = imported(tmp_path, [raw, *BEGIN, raw, *END])
    assert (len(rows), reading.skipped) == (2, {})


@pytest.mark.hazard(60)
def test_a_bad_first_line_does_not_affect_the_others(tmp_path: Path) -> None:
    rows, reading = imported(tmp_path, [b"{garbage\n", *BEGIN, *END])
    assert (len(rows), reading.skipped) == (2, {"not_json": 1})


def test_an_incomplete_last_line_is_left_for_the_next_import(tmp_path: Path) -> None:
    data = as_bytes([*BEGIN, *END])
    rows, reading = imported(tmp_path, [data, b'{"timestamp": "2026'])

    assert len(rows) == 2
    assert reading.consumed == len(data)


@pytest.mark.hazard(60)
@pytest.mark.parametrize("wrong", WRONG, ids=lambda value: json.dumps(value)[:20])
@pytest.mark.parametrize("field", FACTS)
def test_session_fields_of_the_wrong_type_lose_no_message(tmp_path: Path, field: str, wrong: Any) -> None:
    rows, _ = imported(tmp_path, [meta(**{field: wrong}), *BEGIN[1:], *END])
    assert [row["content_text"] for row in rows] == ["Do it.", "Yes."]


@pytest.mark.hazard(60)
@pytest.mark.parametrize("wrong", WRONG, ids=lambda value: json.dumps(value)[:20])
@pytest.mark.parametrize("field", ["cwd", "model", "sandbox_policy", "sandbox"])
def test_an_invalid_turn_context_loses_no_message(tmp_path: Path, field: str, wrong: Any) -> None:
    rows, _ = imported(tmp_path, [meta(), turn(**{field: wrong}), *BEGIN[2:], *END])
    assert [row["content_text"] for row in rows] == ["Do it.", "Yes."]


@pytest.mark.hazard(60)
@pytest.mark.parametrize("wrong", WRONG, ids=lambda value: json.dumps(value)[:20])
@pytest.mark.parametrize(
    "field", ["type", "role", "content", "id", "call_id", "name", "arguments", "output", "summary"]
)
@pytest.mark.parametrize("kind", ["message", "function_call", "function_call_output", "reasoning"])
def test_item_fields_of_the_wrong_type_lose_no_other_message(tmp_path: Path, kind: str, field: str, wrong: Any) -> None:
    good = {"type": kind, "role": "user", "content": "x", "call_id": "c", "name": "f", "arguments": "{}", "output": "o"}
    bad = line("response_item", {**good, field: wrong})
    rows, reading = imported(tmp_path, [*BEGIN, bad, *END])

    texts = [row.get("content_text") for row in rows]
    assert (texts[0], texts[-1]) == ("Do it.", "Yes.")
    assert len(rows) + reading.skipped.total() >= 3


@pytest.mark.hazard(60)
@pytest.mark.parametrize(
    "time", [None, 7, "", "yesterday", "0000-00-00T00:00:00Z", "0000-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59"]
)
def test_a_message_without_a_usable_time_is_kept(tmp_path: Path, time: Any) -> None:
    rows, _ = imported(tmp_path, [*BEGIN, line("response_item", says("user", "When?")["payload"], at=time)])

    assert rows[1]["message_created_at"] == "2026-11-15T07:16:29.842000Z"
    assert rows[1]["attributes"]["gateway"]["time_source"] == "session_start"


@pytest.mark.hazard(60)
def test_times_at_the_ends_of_the_calendar_are_kept(tmp_path: Path) -> None:
    lines = [
        line("response_item", says("user", at)["payload"], at=at)
        for at in ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z")
    ]
    rows, _ = imported(tmp_path, [meta(), turn(), *lines])
    assert [row["date"] for row in rows] == ["0001-01-01", "9999-12-31"]


@pytest.mark.hazard(60)
def test_deeply_nested_arguments_and_outputs_keep_their_message(tmp_path: Path) -> None:
    deep: Any = 0
    for _ in range(250):
        deep = [deep]
    call = item("function_call", name="f", call_id="c1", arguments=DEEP)
    rows, _ = imported(tmp_path, [*BEGIN, call, item("function_call_output", call_id="c1", output=deep), *END])

    assert [row["part_type"] for row in rows] == ["text", "tool_call", "tool_result", "text"]


@pytest.mark.hazard(60)
def test_text_of_every_kind_is_stored_unchanged(tmp_path: Path) -> None:
    strange = "\u0000 \x1b[31m \u202e 𝄞 \\ud800 \ufffe"
    rows, _ = imported(tmp_path, [*BEGIN, says("user", strange)])
    assert rows[1]["content_text"] == strange


@pytest.mark.hazard(60)
def test_a_line_of_many_megabytes_is_imported(tmp_path: Path) -> None:
    rows, _ = imported(tmp_path, [*BEGIN, says("user", "x" * (30 << 20)), *END])
    assert [len(row["content_text"]) for row in rows] == [6, 30 << 20, 4]


@pytest.mark.hazard(60)
def test_a_line_that_is_too_long_is_counted_and_the_others_are_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hypaware.clients.reader.MAX_LINE_BYTES", 4096)
    rows, reading = imported(tmp_path, [*BEGIN, says("user", "x" * 10_000), *END])

    assert [row["content_text"] for row in rows] == ["Do it.", "Yes."]
    assert reading.skipped == {"line_too_long": 1}


def test_a_large_file_gives_the_same_rows_as_if_it_were_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, _ = imported(tmp_path, [*BEGIN, *END])
    monkeypatch.setattr("hypaware.clients.reader._MAX_KEPT_BYTES", 0)
    again, _ = imported(tmp_path, [*BEGIN, *END])
    assert again == kept


@pytest.mark.parametrize("data", [b"", b"\n", b"\x00", b"{", b"{}", b"[]", b"null", b'{"items": 5}'])
def test_a_file_without_content_gives_no_rows(tmp_path: Path, data: bytes) -> None:
    rows, _ = imported(tmp_path, [data])
    assert rows == []


def test_a_file_that_grows_while_it_is_read_gives_only_the_pinned_lines(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes(as_bytes([*BEGIN, *END]))
    pinned = pin(path)
    with path.open("ab") as file:
        file.write(as_bytes([says("user", "Later.")]))
    rows, reading = rows_of(PROVIDER, path, size=pinned.size)

    assert [row["content_text"] for row in rows] == ["Do it.", "Yes."]
    assert reading.consumed == pinned.size


@pytest.mark.parametrize("kept_bytes", [0, 1 << 20])
def test_a_file_truncated_while_it_is_read_is_reported_as_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_bytes: int
) -> None:
    monkeypatch.setattr("hypaware.clients.reader._MAX_KEPT_BYTES", kept_bytes)
    path = tmp_path / NAME
    path.write_bytes(as_bytes([*BEGIN, *END]))
    with SourceReader(pin(path)) as reading:
        path.write_bytes(b"")
        with pytest.raises(SourceChanged):
            list(PROVIDER.read(reading, NOWHERE))


def test_a_file_whose_name_is_not_utf8_is_imported(tmp_path: Path) -> None:
    name = (b"rollout-\xff.jsonl").decode("utf-8", "surrogateescape")
    rows, _ = imported(tmp_path, [line("session_meta", {}), says("user", "Hi.")], name)

    assert rows[0]["content_text"] == "Hi."
    assert rows[0]["conversation_id"] == "rollout-\ufffd"


@pytest.mark.hazard(61)
@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "..", "a\x00b", "a/b"])
def test_ids_that_look_like_paths_are_only_text(tmp_path: Path, name: str) -> None:
    before = sorted(tmp_path.iterdir())
    rows, _ = imported(tmp_path, [meta(id=name, session_id=name, parent_thread_id=name), says("user", "Hi.", id=name)])

    assert {rows[0][column] for column in ("session_id", "conversation_id", "message_id")} == {name}
    assert sorted(tmp_path.iterdir()) == [*before, tmp_path / NAME]
