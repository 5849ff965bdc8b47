"""OpenCode's database: every part once, while the client writes to it, with a cursor in place of an offset."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hypaware.clients import database_source
from hypaware.clients.client import Source
from hypaware.clients.opencode.history import OpenCodeHistory
from hypaware.clients.reader import TimeWindow
from hypaware.model.columns import format_timestamp
from tests.support.history import usage
from tests.support.opencode_database import TIME, Client, Importer, count, make_database
from tests.support.strategies import json_values

PROVIDER = OpenCodeHistory()
ANSWER = {"role": "assistant", "modelID": "m", "providerID": "p"}
DONE = {**ANSWER, "time": {"created": TIME, "completed": TIME + 1}, "finish": "stop"}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no record become stale, however long the tests wait for their turn."""
    monkeypatch.setattr(database_source, "_STALE_MS", 10**12)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make_database(tmp_path)


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    return make_database(tmp_path, with_sample=False)


@pytest.fixture
def client(empty: Path) -> Iterator[Client]:
    found = Client(empty)
    found.add_session("s1")
    yield found
    found.close()


def test_every_part_and_token_of_the_sample_is_recorded(path: Path) -> None:
    rows = Importer(path, quiet=True).run()
    assert rows is not None
    parts, tokens = count(path)

    assert Counter((row["role"], row["part_type"]) for row in rows) == parts
    assert usage(rows) == tokens
    assert len({row["part_id"] for row in rows}) == len(rows)
    assert {row["cwd"] for row in rows} == {"/home/dev/shop"}
    assert {row.get("model") for row in rows if row["role"] == "assistant"} == {"gpt-x"}
    assert {row["client_version"] for row in rows} == {"1.18.33"}


def test_the_client_is_not_disturbed(path: Path) -> None:
    before = {each.name: each.read_bytes() for each in path.parent.iterdir()}
    Importer(path).run()
    assert {each.name: each.read_bytes() for each in path.parent.iterdir()} == before


def test_what_is_only_in_the_side_file_is_read_while_the_client_writes(client: Client) -> None:
    client.ask("m1", "s1", TIME, "One")
    importer = Importer(client.path)
    client.database.execute("BEGIN IMMEDIATE")
    client.ask("m2", "s1", TIME + 1, "Two")

    assert importer.texts() == ["One"]
    client.database.execute("COMMIT")
    assert importer.texts() == ["Two"]
    assert [row["previous_message_id"] for row in importer.rows] == [[], ["m1"]]


def test_an_unchanged_database_is_not_due(client: Client) -> None:
    client.ask("m1", "s1", TIME, "One")
    importer = Importer(client.path)
    assert importer.texts() == ["One"]
    assert importer.texts() is None


def test_a_response_is_recorded_when_it_is_completed(client: Client) -> None:
    importer = Importer(client.path)
    client.put_message("m1", "s1", TIME, **ANSWER)
    client.put_part("p1", "m1", "s1", TIME, type="text", text="Hel")
    assert importer.texts() == []
    assert importer.held() == {"m1"}

    client.put_part("p1", "m1", "s1", TIME + 1, type="text", text="Hello")
    client.put_message("m1", "s1", TIME + 1, **DONE, tokens={"input": 7, "output": 2})
    assert importer.texts() == ["Hello"]
    assert usage(importer.rows)["input_tokens"] == 7
    assert importer.held() == set()


def test_a_response_that_was_abandoned_is_recorded_when_the_database_is_quiet(client: Client) -> None:
    importer = Importer(client.path)
    client.put_message("m1", "s1", TIME, **ANSWER)
    client.put_part("p1", "m1", "s1", TIME, type="text", text="Hel")
    assert importer.texts() == []

    importer.quiet = True
    assert importer.texts() == ["Hel"]
    assert importer.texts() is None


def test_a_response_that_did_not_change_for_long_is_recorded_although_others_do(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_source, "_STALE_MS", 600_000)
    client.put_message("m1", "s1", TIME - 3_600_000, **ANSWER)
    client.put_part("p1", "m1", "s1", TIME - 3_600_000, type="text", text="Hel")
    client.ask("m2", "s1", TIME, "Go on")

    assert Importer(client.path).texts() == ["Hel", "Go on"]


def test_a_call_and_its_result_are_recorded_with_their_tool(client: Client) -> None:
    state = {"status": "error", "input": {"a": 1}, "error": "no such file", "time": {"start": TIME, "end": TIME + 5}}
    client.put_message("m1", "s1", TIME, **DONE)
    client.put_part("p1", "m1", "s1", TIME, type="tool", tool="read", callID="c1", state=state)
    rows = Importer(client.path).run()

    assert rows is not None
    assert [(row["part_type"], row["tool_name"], row["tool_call_id"]) for row in rows] == [
        ("tool_call", "read", "c1"),
        ("tool_result", "read", "c1"),
    ]
    assert rows[0]["tool_args"] == {"a": 1}
    assert (rows[1]["is_error"], rows[1]["content_text"]) == (True, "no such file")


def test_records_with_old_times_are_found(client: Client) -> None:
    importer = Importer(client.path)
    client.ask("m1", "s1", TIME, "One")
    assert importer.texts() == ["One"]
    client.ask("m0", "s1", TIME - 10_000_000, "From another machine")

    assert importer.run() is not None
    kept = {row["part_id"]: row for row in reversed(importer.rows)}
    assert sorted(row["content_text"] for row in kept.values()) == ["From another machine", "One"]


def test_records_that_are_committed_late_are_found(client: Client) -> None:
    importer = Importer(client.path)
    client.ask("m2", "s1", TIME, "Two")
    assert importer.texts() == ["Two"]
    client.ask("m1", "s1", TIME - 5_000, "One")
    assert importer.texts() == ["One"]


def test_another_database_in_the_same_place_is_read_from_the_beginning(path: Path, tmp_path: Path) -> None:
    importer = Importer(path)
    first = importer.run()
    (tmp_path / "other").mkdir()
    other = make_database(tmp_path / "other")
    for suffix in ("-wal", "-shm"):
        path.with_name(f"{path.name}{suffix}").unlink(missing_ok=True)
    other.replace(path)

    assert importer.run() == first


def test_messages_outside_the_window_are_read_when_it_becomes_wider(client: Client) -> None:
    client.ask("m1", "s1", TIME - 10_000_000, "Old")
    client.ask("m2", "s1", TIME, "New")
    since = format_timestamp(datetime.fromtimestamp(TIME / 1000 - 60, UTC))
    importer = Importer(client.path, window=TimeWindow(since))
    assert importer.texts() == ["New"]
    client.ask("m3", "s1", TIME + 1, "Newer")
    assert importer.texts() == ["Newer"]

    importer.window = TimeWindow()
    texts = importer.texts()
    assert texts is not None
    assert "Old" in texts
    assert importer.texts() is None


def test_a_subagent_belongs_to_the_first_session_and_titles_are_read(client: Client) -> None:
    client.add_session("s2", parent="s1", title="Look")
    client.add_session("s3", parent="s2")
    client.database.execute("UPDATE session SET title = 'Shopping' WHERE id = 's1'")
    for number in (1, 2, 3):
        client.ask(f"m{number}", f"s{number}", TIME, "x")
    importer = Importer(client.path)
    rows = importer.run()

    assert rows is not None
    assert [(row["session_id"], row.get("conversation_id"), row.get("is_sidechain")) for row in rows] == [
        ("s1", None, None),
        ("s1", "s2", True),
        ("s1", "s3", True),
    ]
    assert [(each.session_id, each.title) for each in importer.report.titles] == [("s1", "Shopping")]


def test_unknown_parts_are_counted(client: Client) -> None:
    client.put_message("m1", "s1", TIME, role="user")
    client.put_part("p1", "m1", "s1", TIME, type="hologram")
    client.put_part("p2", "m1", "s1", TIME, type="text", text="One")
    client.put_part("p3", "m1", "s1", TIME, type="step-start")
    importer = Importer(client.path)

    assert importer.texts() == ["One"]
    assert dict(importer.report.skipped) == {"unknown_type:hologram": 1, "bookkeeping": 1}


@pytest.mark.hazard(60)
@pytest.mark.parametrize("content", [b"not a database", b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_database_stays_due_and_is_reported(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "opencode.db"
    path.write_bytes(content)
    importer = Importer(path)

    assert importer.run() == []
    assert importer.report.changed == "unreadable"
    assert importer.checkpoint is None


def test_a_database_of_something_else_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "opencode.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE other (x)")
    importer = Importer(path)

    assert importer.run() == []
    assert dict(importer.report.skipped) == {"not_a_session_database": 1}
    assert importer.run() is None


@pytest.mark.hazard(60)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    message=st.dictionaries(st.sampled_from(["role", "time", "tokens", "error", "path", "finish"]), json_values),
    part=st.dictionaries(st.sampled_from(["text", "state", "callID", "tool", "mime", "url"]), json_values),
    kind=st.sampled_from(["text", "reasoning", "tool", "file", "subtask", "patch", "other"]),
)
def test_any_json_can_be_imported(
    client: Client, message: dict[str, object], part: dict[str, object], kind: str
) -> None:
    client.put_message("m1", "s1", TIME, **message)
    client.put_part("p1", "m1", "s1", TIME, **{"type": kind, **part})
    importer = Importer(client.path, quiet=True)

    assert importer.run() is not None
    assert importer.report.checkpoint is not None, importer.report


def test_databases_are_found_and_older_storage_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / ".local" / "share" / "opencode"
    (folder / "storage" / "message").mkdir(parents=True)
    environment = {"HOME": str(tmp_path)}
    assert [each.name for each in PROVIDER.find(environment) if not isinstance(each, Source)] == [
        "unsupported_location",
        "no_history",
    ]
    for name in ("opencode.db", "opencode.db-wal", "opencode.db-shm", "opencode-dev.db", "mine.db"):
        (folder / name).touch()

    found = [each.path.name for each in PROVIDER.find(environment) if isinstance(each, Source)]
    assert found == ["opencode-dev.db", "opencode.db"]
    own = PROVIDER.find({"HOME": "/nonexistent", "XDG_DATA_HOME": str(folder.parent), "OPENCODE_DB": "mine.db"})
    assert [each.path.name for each in own if isinstance(each, Source)] == [*found, "mine.db"]
