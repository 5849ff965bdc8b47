"""Prompts of sessions whose transcripts are gone: rescued once, never next to the transcript's own rows."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hypaware.clients.claude.history import ClaudeHistory
from hypaware.clients.reader import SourceReader
from hypaware.home import Home
from hypaware.home.session_context import context_path
from hypaware.model.datasets import Row
from tests.support.claude_transcripts import SESSION, as_bytes, at, says, user
from tests.support.compaction_cases import SmallFiles
from tests.support.history import rows_of
from tests.support.light_home import DATASET, append, import_history
from tests.support.light_lake import read_lake
from tests.support.live_rows import Part
from tests.support.strategies import json_values

PROVIDER = ClaudeHistory()
LONG_AGO = time.time() - 86_400


def milliseconds(second: float) -> int:
    from datetime import datetime

    return int(datetime.fromisoformat(at(second)).timestamp() * 1000)


def prompt(text: Any, second: float = 0, session: str | None = SESSION, **more: Any) -> dict[str, Any]:
    named = {} if session is None else {"sessionId": session}
    facts = {"pastedContents": {}, "timestamp": milliseconds(second), "project": "/nonexistent/shop"}
    return {"display": text, **facts, **named, **more}


class Machine:
    """A user's folder with Claude Code's files, and a home that imports them."""

    def __init__(self, user_folder: Path, home: Home) -> None:
        self.home = home
        self.environment = {"HOME": str(user_folder), "HYP_HOME": str(home.root)}
        self.projects = user_folder / ".claude" / "projects"
        self.transcript = self.projects / "-shop" / f"{SESSION}.jsonl"
        self.transcript.parent.mkdir(parents=True)

    def type(self, *prompts: Any, quiet: bool = True) -> None:
        path = self.projects.with_name("history.jsonl")
        with path.open("ab") as file:
            file.write(as_bytes(prompts))
        if quiet:
            os.utime(path, (LONG_AGO, LONG_AGO))

    def write_transcript(self, *lines: Any) -> None:
        self.transcript.write_bytes(as_bytes(lines))
        os.utime(self.transcript, (LONG_AGO, LONG_AGO))

    def backfill(self) -> Counter[str]:
        report = import_history(self.home, self.environment)
        assert report.error is None
        return report.lines_skipped

    def rows(self) -> list[Row]:
        return sorted(read_lake(self.home, DATASET), key=lambda row: str(row["message_created_at"]))

    def texts(self) -> list[str]:
        return [row["content_text"] for row in self.rows()]


@pytest.fixture
def machine(tmp_path: Path, home: Home) -> Machine:
    return Machine(tmp_path / "user", home)


def is_rescued(row: Row) -> bool:
    return bool(json.loads(row["attributes"]).get("claude", {}).get("source") == "prompt_history")


def test_the_prompts_of_a_deleted_session_are_rescued_once_and_marked(machine: Machine) -> None:
    machine.type(prompt("First", 1), prompt("Again", 2), prompt("Again", 3))
    machine.backfill()
    machine.type(prompt("Last", 4))
    machine.backfill()
    machine.backfill()

    rows = machine.rows()
    assert [row["content_text"] for row in rows] == ["First", "Again", "Again", "Last"]
    assert {(row["session_id"], row["role"], row["cwd"]) for row in rows} == {(SESSION, "user", "/nonexistent/shop")}
    assert all(map(is_rescued, rows))


def test_a_session_with_a_transcript_is_not_rescued(machine: Machine) -> None:
    machine.type(prompt("First", 1))
    machine.write_transcript(user("u1", "First", second=1))

    assert machine.backfill()["in_transcript"] == 1
    assert [is_rescued(row) for row in machine.rows()] == [False]


def test_a_session_whose_transcript_was_imported_and_deleted_is_not_rescued(machine: Machine) -> None:
    machine.write_transcript(user("u1", "First", second=1))
    machine.backfill()
    machine.transcript.unlink()
    machine.type(prompt("First", 1))
    machine.backfill()

    assert [is_rescued(row) for row in machine.rows()] == [False]


def test_a_transcript_that_comes_back_settles_the_rescued_prompts(machine: Machine) -> None:
    machine.type(prompt("First", 1), prompt("continue", 2), prompt("continue", 3))
    machine.backfill()
    machine.write_transcript(
        user("u1", "First", second=1.5),
        says("u2", "Done", parent="u1", second=1.7),
        user("u3", "continue", "u2", second=2.5),
        user("u4", "continue", "u3", second=3.5),
    )
    machine.backfill()

    assert machine.texts() == ["First", "Done", "continue", "continue"]
    assert SmallFiles(machine.home).compact().errors == []
    rows = machine.rows()
    assert [row["part_id"] for row in rows] == ["u1#0", "u2#0", "u3#0", "u4#0"]
    assert not any(map(is_rescued, rows))
    machine.backfill()
    assert len(machine.rows()) == 4


def test_a_session_that_the_hooks_know_was_recorded_live(machine: Machine) -> None:
    path = context_path(machine.home.root, "claude")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"session_id": SESSION, "cwd": "/nonexistent/shop", "at": at(0)}) + "\n")
    machine.type(prompt("First", 1))

    assert machine.backfill()["in_transcript"] == 1
    assert machine.rows() == []


def test_a_session_that_the_index_knows_was_recorded_live(machine: Machine) -> None:
    from hypaware.index.refresh import refresh_index

    append(machine.home, [Part(0, session=SESSION).live(), Part(1, "answer", session=SESSION).live()])
    machine.backfill()
    refresh_index(machine.home)
    machine.type(prompt("text of 0", 1))
    machine.backfill()

    assert len(machine.rows()) == 2


def test_commands_and_prompts_without_a_session_are_counted(machine: Machine) -> None:
    machine.type(prompt("/clear", 1), prompt("!ls", 2), prompt("Old", 3, session=None), prompt("", 4), prompt(7, 5))

    assert dict(machine.backfill()) == {"command": 2, "no_session": 1, "no_prompt": 2}
    assert machine.rows() == []


def test_pasted_text_takes_the_place_of_its_mark(machine: Machine) -> None:
    pasted = {"1": {"id": 1, "type": "text", "content": "a\nb"}, "2": {"id": 2, "type": "text", "contentHash": "0a"}}
    text = "See [Pasted text #1 +1 lines], [Pasted text #2 +9 lines] and [Image #3]"
    machine.type(prompt(text, 1, pastedContents=pasted))
    machine.backfill()

    assert machine.texts() == ["See a\nb, [Pasted text #2 +9 lines] and [Image #3]"]


def test_a_prompt_of_a_session_that_has_just_begun_is_held_back(machine: Machine) -> None:
    machine.type({**prompt("First"), "timestamp": int(time.time() * 1000)}, quiet=False)
    machine.backfill()
    assert machine.rows() == []

    machine.write_transcript(user("u1", "First", second=1))
    machine.type(prompt("Of another session", 2, session="other"), quiet=False)
    machine.backfill()
    assert [(row["content_text"], is_rescued(row)) for row in machine.rows()] == [
        ("First", False),
        ("Of another session", True),
    ]


@pytest.mark.hazard(60)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(
        st.dictionaries(
            st.sampled_from(["display", "pastedContents", "timestamp", "project", "sessionId"]),
            json_values | st.just("s1") | st.just({"1": {"content": "x"}}),
        ),
        max_size=4,
    )
)
def test_any_json_can_be_imported(tmp_path: Path, values: list[dict[str, Any]]) -> None:
    path = tmp_path / ".claude" / "history.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(as_bytes([*values, prompt("Kept", session="kept")]))
    rows, reading = rows_of(PROVIDER, path, environment={"HOME": str(tmp_path), "HYP_HOME": str(tmp_path / "hyp")})

    assert isinstance(reading, SourceReader)
    assert rows[-1]["content_text"] == "Kept"
    assert len({row["part_id"] for row in rows}) == len(rows)
