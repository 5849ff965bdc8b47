"""The old form of a rollout: one document for the whole file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hypaware.clients.reader import SourceReader
from hypaware.model.datasets import Row
from tests.support.codex_rollouts import PROVIDER, answers, calls, item, says, thinks
from tests.support.history import GrowingFile, rows_of

NAME = "rollout-2025-05-01-b04fd134-6f4c-4a9f-8f3e-000000000001.json"
SESSION = {"id": "s1", "timestamp": "2025-05-01T10:00:00.000Z", "instructions": "Be brief."}
ITEMS = [
    each["payload"]
    for each in (says("user", "List."), thinks("Hm."), calls("c1"), answers("c1", "a.txt"), says("assistant", "a.txt"))
]


def imported(folder: Path, document: Any, *, indent: int | None = 2, **pinned: Any) -> tuple[list[Row], SourceReader]:
    path = folder / NAME
    path.write_text(json.dumps(document, indent=indent), encoding="utf-8")
    return rows_of(PROVIDER, path, **pinned)


@pytest.mark.parametrize("indent", [None, 2])
def test_items_become_messages(tmp_path: Path, indent: int | None) -> None:
    rows, reading = imported(tmp_path, {"session": SESSION, "items": ITEMS}, indent=indent)

    assert [(row["role"], row["part_type"]) for row in rows] == [
        ("user", "text"),
        ("assistant", "reasoning"),
        ("assistant", "tool_call"),
        ("tool", "tool_result"),
        ("assistant", "text"),
    ]
    assert {(row["session_id"], row["conversation_id"]) for row in rows} == {("s1", "s1")}
    assert [row for row in rows if "usage" in row["attributes"]] == []
    assert reading.skipped == {}
    assert reading.consumed == reading.source.size


def test_a_document_on_one_line_may_end_with_its_newline(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(json.dumps({"session": SESSION, "items": ITEMS}) + "\n", encoding="utf-8")
    rows, _ = rows_of(PROVIDER, tmp_path / NAME)
    assert len(rows) == 5


def test_messages_have_the_time_of_the_session_and_its_origin(tmp_path: Path) -> None:
    rows, _ = imported(tmp_path, {"session": SESSION, "items": ITEMS[:1]})

    assert rows[0]["message_created_at"] == rows[0]["conversation_started_at"] == "2025-05-01T10:00:00.000000Z"
    assert rows[0]["attributes"]["gateway"]["time_source"] == "session_start"


@pytest.mark.parametrize("session", [None, 7, {}, {"timestamp": "yesterday", "id": 5}])
def test_without_a_session_the_file_name_gives_thread_and_day(tmp_path: Path, session: Any) -> None:
    rows, _ = imported(tmp_path, {"session": session, "items": ITEMS})
    assert {row["conversation_id"] for row in rows} == {"b04fd134-6f4c-4a9f-8f3e-000000000001"}
    assert {row["message_created_at"] for row in rows} == {"2025-05-01T00:00:00.000000Z"}
    assert {row["attributes"]["gateway"]["time_source"] for row in rows} == {"file_name"}


def test_items_without_a_message_are_counted(tmp_path: Path) -> None:
    unsaid = [
        5,
        None,
        {"type": "local_hologram"},
        {"type": "message", "content": []},
        item("ghost_snapshot")["payload"],
    ]
    rows, reading = imported(tmp_path, {"session": SESSION, "items": [*unsaid, *ITEMS]})

    assert len(rows) == 5
    assert reading.skipped == {
        "not_an_object": 2,
        "unknown_type:local_hologram": 1,
        "empty_content": 1,
        "bookkeeping": 1,
    }


@pytest.mark.parametrize("items", [[], None, {}, 5])
def test_a_document_without_items_gives_no_rows(tmp_path: Path, items: Any) -> None:
    rows, _ = imported(tmp_path, {"session": SESSION, "items": items}, indent=None)
    assert rows == []


@pytest.mark.hazard(53)
def test_repeated_messages_are_separate_messages(tmp_path: Path) -> None:
    rows, _ = imported(tmp_path, {"session": SESSION, "items": [*ITEMS, *ITEMS]})
    assert len({row["part_id"] for row in rows}) == 10


def test_an_incomplete_document_is_imported_once_it_is_complete(tmp_path: Path) -> None:
    data = json.dumps({"session": SESSION, "items": ITEMS}, indent=1).encode()
    file = GrowingFile(PROVIDER, tmp_path / NAME)
    for cut in range(0, len(data), 97):
        assert file.grow_to(data[:cut], quiet=True) == []

    assert len(file.grow_to(data, quiet=True)) == 5


def test_a_document_followed_by_lines_has_the_new_form(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(json.dumps({"items": ITEMS}) + "\n" + json.dumps(says("user", "Hi.")))
    rows, reading = rows_of(PROVIDER, tmp_path / NAME)

    assert [row["content_text"] for row in rows] == ["Hi."]
    assert reading.skipped == {"unknown_type:none": 1}
