"""Invalid transcripts: bad lines are counted with a reason, and nothing else is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hypaware.clients import reader
from hypaware.clients.reader import SourceChanged, SourceReader
from tests.support.claude_transcripts import (
    PROVIDER,
    SESSION,
    answers,
    as_bytes,
    calls,
    imported,
    line,
    rows,
    says,
    user,
)
from tests.support.history import NOWHERE, pin, rows_of
from tests.support.unprivileged import unprivileged

pytestmark = pytest.mark.hazard(60)

GOOD = user("good", "Still here.", None, 30)
WRONG: list[Any] = [7, -1.5, True, "text", "", [], [[]], {}, {"a": {"b": 1}}, 10**30, "\0", "\x1b[31m"]
FIELDS = [
    *("parentUuid", "logicalParentUuid", "isSidechain", "type", "uuid", "timestamp", "sessionId", "version", "cwd"),
    *("gitBranch", "message", "requestId", "promptId", "agentId", "subtype", "entrypoint", "userType"),
    *("permissionMode", "isCompactSummary", "compactMetadata", "attachment", "hookEvent", "toolUseResult"),
    *("sourceToolAssistantUUID", "isApiErrorMessage", "error", "requestRef", "is_sidechain"),
]
MESSAGE_FIELDS = ["id", "role", "content", "model", "usage", "stop_reason", "type"]
BLOCK_FIELDS = ["type", "text", "thinking", "signature", "data", "id", "name", "input", "caller", "tool_use_id"]


def raw(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"


def assert_good_is_there(folder: Path, *lines: Any) -> SourceReader:
    made, reading = imported(folder, *(each if isinstance(each, bytes) else raw(each) for each in lines), raw(GOOD))
    assert [row["content_text"] for row in made if row["message_id"] == "good"] == ["Still here."]
    assert reading.consumed == reading.source.size
    return reading


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"garbage\n", "not_json"),
        (b'{"type": "user", "message": \n', "not_json"),
        (b"[1, 2]\n", "not_an_object"),
        (b"null\n", "not_an_object"),
        (b'{"type": "\xff\xfe"}\n', "not_utf8"),
        (b"\0\0\0\0\n", "nul_bytes"),
        (b'{"a": NaN}\n', "not_json"),
        (b'{"type": "user", "sessionId": "s", "uuid": "\\ud800"}\n', "not_json"),
    ],
)
def test_a_line_that_is_not_an_object_is_counted(tmp_path: Path, bad: bytes, reason: str) -> None:
    assert assert_good_is_there(tmp_path, bad).skipped == {reason: 1}


def test_a_line_that_is_nested_too_deeply_to_be_read_is_counted(tmp_path: Path) -> None:
    deep = b'{"a": ' + b"[" * 5_000 + b"]" * 5_000 + b"}\n"
    assert sum(assert_good_is_there(tmp_path, deep).skipped.values()) == 1


def test_empty_lines_are_ignored(tmp_path: Path) -> None:
    assert not assert_good_is_there(tmp_path, b"\n", b"  \n", b"\r\n").skipped


@pytest.mark.parametrize("content", [b"", b"\n", b"{", b"\0"])
def test_a_file_without_content_gives_no_rows(tmp_path: Path, content: bytes) -> None:
    assert rows(tmp_path, content) == []


def test_an_incomplete_last_line_is_left_for_the_next_import(tmp_path: Path) -> None:
    whole, half = raw(user("u1", "Hello")), raw(GOOD)[:40]
    made, reading = imported(tmp_path, whole, half)
    assert [row["message_id"] for row in made] == ["u1"]
    assert reading.skipped == {"half_line": 1}
    assert reading.consumed == len(whole)


def test_a_last_line_without_a_newline_counts_if_it_is_complete(tmp_path: Path) -> None:
    made, reading = imported(tmp_path, raw(GOOD)[:-1])
    assert [row["message_id"] for row in made] == ["good"]
    assert reading.consumed == reading.source.size


def test_a_line_that_is_too_long_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_LINE_BYTES", 2_000)
    reading = assert_good_is_there(tmp_path, user("u1", "x" * 10_000))
    assert reading.skipped == {"line_too_long": 1}


def test_a_line_of_fifty_megabytes_is_a_row(tmp_path: Path) -> None:
    made, _ = imported(tmp_path, raw(user("u1", "x" * (50 << 20))), raw(GOOD))
    assert len(made[0]["content_text"]) == 50 << 20


def test_a_file_that_is_not_kept_in_memory_gives_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [user("u1", "a"), says("a1", calls("c1"), "u1", output=5), user("u2", answers("c1"), "a1", 2)]
    kept = rows(tmp_path, *lines)
    monkeypatch.setattr(reader, "_MAX_KEPT_BYTES", 0)
    assert rows(tmp_path, *lines) == kept


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_a_wrong_type_in_a_field_affects_only_its_line(tmp_path: Path, field: str, wrong: Any) -> None:
    result = user("u1", answers("c1"), "a0", 2, requestId="r")
    spoken = says("a1", calls("c1"), "u1", 1, output=5, stop="end_turn")
    assert_good_is_there(tmp_path, result | {field: wrong}, spoken | {field: wrong})


@pytest.mark.parametrize("field", MESSAGE_FIELDS)
@pytest.mark.parametrize("wrong", WRONG[:-2], ids=repr)
def test_a_wrong_type_in_a_message_affects_only_its_line(tmp_path: Path, field: str, wrong: Any) -> None:
    for said in (user("u1", "Hello"), says("a1", "Hi", None, 1, output=5)):
        said["message"][field] = wrong
        assert_good_is_there(tmp_path, said)


@pytest.mark.parametrize("field", BLOCK_FIELDS)
@pytest.mark.parametrize("wrong", WRONG[:-2], ids=repr)
def test_a_wrong_type_in_a_block_affects_only_its_part(tmp_path: Path, field: str, wrong: Any) -> None:
    kinds = ["text", "thinking", "redacted_thinking", "tool_use", "tool_result", "image", "error", "new"]
    blocks = [{"type": kind, "text": "x"} | {field: wrong} for kind in kinds]
    said = says("a1", "Hi", None, 1)
    said["message"]["content"] = [*blocks, {"type": "text", "text": "Still here."}]
    made, _ = imported(tmp_path, raw(said))
    assert [row["content_text"] for row in made if row["part_index"] == len(blocks)] == ["Still here."]


def test_a_wrong_type_is_left_out_of_its_column_and_counted(tmp_path: Path) -> None:
    made, reading = imported(tmp_path, user("u1", "Hello", entrypoint=7, isCompactSummary="yes", gitBranch=[]))
    assert made[0]["content_text"] == "Hello"
    assert not made[0].keys() & {"entrypoint", "is_compact_summary", "git_branch"}
    assert reading.skipped == {"bad_entrypoint": 1, "bad_is_compact_summary": 1}


@pytest.mark.parametrize(
    "time", ["0000-01-01T00:00:00Z", "yesterday", "2026-11-15T08:00:00", "9999-12-31T23:59:59-01:00", "", 1_763_000_000]
)
def test_an_invalid_time_is_counted_and_replaced_by_that_of_the_session(tmp_path: Path, time: Any) -> None:
    made, reading = imported(tmp_path, user("u1", "a", None, 1), user("u2", "b") | {"timestamp": time})
    assert [row["message_id"] for row in made] == ["u1", "u2"]
    assert made[1]["message_created_at"] == "2026-11-15T08:00:01.000000Z"
    assert made[1]["attributes"]["gateway"]["time_source"] == "session_start"
    assert reading.skipped == {"bad_created_at": 1}


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999Z"])
def test_times_in_the_first_and_last_year_are_valid(tmp_path: Path, time: str) -> None:
    made, reading = imported(tmp_path, user("u1", "a") | {"timestamp": time})
    assert made[0]["date"] == time[:10]
    assert not reading.skipped


def test_the_first_line_with_a_duplicate_uuid_counts(tmp_path: Path) -> None:
    made, reading = imported(tmp_path, user("u1", "first", None, 5), user("u1", "second", None, 1), raw(GOOD))
    assert [row["content_text"] for row in made] == ["first", "Still here."]
    assert reading.skipped == {"duplicate_message": 1}


def test_a_duplicate_uuid_in_a_response_loses_no_tokens(tmp_path: Path) -> None:
    made, _ = imported(tmp_path, says("a1", "one", None, 1, output=1), says("a1", "one", None, 1, output=9))
    assert [row["attributes"]["usage"]["output_tokens"] for row in made] == [9]


def test_a_cycle_of_parents_leads_to_no_message(tmp_path: Path) -> None:
    made = rows(
        tmp_path,
        user("u1", "a", "u3", 0),
        user("u2", "b", "u1", 1),
        user("u3", "c", "u2", 2),
        user("u4", "d", "u4", 3),
        line("system", "x1", "x2"),
        line("system", "x2", "x1"),
        user("u5", "e", "x1", 4),
        user("u6", "f", "u3", 5),
    )
    previous = {row["message_id"]: row["previous_message_id"] for row in made}
    assert previous == {"u1": [], "u2": ["u1"], "u3": ["u2"], "u4": [], "u5": [], "u6": ["u3"]}


def test_a_long_chain_of_lines_without_rows_is_followed_once(tmp_path: Path) -> None:
    """Every message has the same hundred thousand ancestors without rows."""
    chain = (raw({"type": "system", "uuid": f"x{at}", "parentUuid": f"x{at - 1}"}) for at in range(1, 100_000))
    children = (raw(user(f"u{number}", "hi", "x99999", number % 60)) for number in range(300))
    made = rows(tmp_path, raw(user("x0", "root")), *chain, *children)
    assert {tuple(row["previous_message_id"]) for row in made if row["message_id"] != "x0"} == {("x0",)}


def test_messages_without_a_session_are_counted(tmp_path: Path) -> None:
    said = user("u1", "Hello")
    del said["sessionId"]
    assert assert_good_is_there(tmp_path, said, said | {"sessionId": 7}, {"type": 7}, {}).skipped == {
        "no_session": 2,
        "no_type": 2,
    }


def test_names_with_path_components_are_only_data(tmp_path: Path) -> None:
    hostile = "../../../../etc/passwd"
    made, _ = imported(tmp_path, user(hostile, "a", sessionId=hostile, agentId=hostile, cwd=hostile))
    assert (made[0]["session_id"], made[0]["agent_id"], made[0]["message_id"]) == (hostile, hostile, hostile)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["session.jsonl"]


def test_images_are_never_stored(tmp_path: Path) -> None:
    load = "iVBORw0KGgoAAAANSUhEUg" * 60
    source = {"type": "base64", "media_type": "image/png", "data": load}
    shown = [{"type": "text", "text": "see"}, {"type": "image", "source": source}]
    made, _ = imported(
        tmp_path,
        user("u1", [*shown, {"type": "document", "source": source}]),
        user("u2", answers("c1", shown), None, 1, toolUseResult={"type": "image", "file": {"base64": load}}),
        user("u3", f"look: data:image/png;base64,{load} there", None, 2, toolUseResult=shown),
        says("a1", calls("c2", url=f"data:image/png;base64,{load}"), None, 3),
    )
    assert load not in json.dumps(made)
    by_id = {row["part_id"]: row for row in made}
    assert by_id["u1#1"]["part_type"] == "image"
    assert by_id["u1#2"]["part_type"] == "file"
    assert by_id["u2#0"]["content_text"] == "see"
    assert by_id["u2#0"]["attributes"]["claude"]["tool_use_result"]["file"] == {"base64": "<stripped>"}
    assert by_id["u3#0"]["content_text"] == "look: data:image/png;base64,<stripped> there"
    assert by_id["a1#0"]["tool_args"] == {"url": "data:image/png;base64,<stripped>"}


def test_a_tool_result_nested_too_deeply_is_truncated(tmp_path: Path) -> None:
    deep: Any = "bottom"
    for _ in range(400):
        deep = {"a": deep}
    made, reading = imported(tmp_path, user("u1", "Hello", toolUseResult=deep), says("a1", calls("c1", deep=deep)))
    assert [row["message_id"] for row in made] == ["u1", "a1"]
    assert reading.skipped == {"bad_attributes": 1, "bad_tool_args": 1}


def test_integers_keep_every_digit(tmp_path: Path) -> None:
    made = rows(tmp_path, says("a1", calls("c1", id=123456789012345678901234567890)))
    assert made[0]["tool_args"] == {"id": 123456789012345678901234567890}


def test_a_file_truncated_after_it_was_found_stays_due(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    path.write_bytes(as_bytes([GOOD, GOOD]))
    pinned = pin(path)
    path.write_bytes(as_bytes([GOOD]))
    with pytest.raises(SourceChanged), SourceReader(pinned):
        pass


def test_lines_written_after_the_file_was_found_are_left_for_the_next_import(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    path.write_bytes(as_bytes([GOOD]))
    pinned = pin(path)
    with path.open("ab") as file:
        file.write(as_bytes([user("u2", "later", "good", 31)]))
    with SourceReader(pinned) as reading:
        items = list(PROVIDER.read(reading, NOWHERE))
    assert len(items) == 1
    assert reading.consumed == pinned.size


def test_an_unreadable_file_is_an_error_of_that_file(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    path.write_bytes(as_bytes([GOOD]))
    path.chmod(0)
    with unprivileged(), pytest.raises(PermissionError):
        rows_of(PROVIDER, path)


def test_a_session_id_may_be_any_text(tmp_path: Path) -> None:
    made = rows(tmp_path, user("u1", "Hello", sessionId="x" * 5_000), user("u2", "Hello", sessionId=SESSION))
    assert {len(row["session_id"]) for row in made} == {5_000, 36}
