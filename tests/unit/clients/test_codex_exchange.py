"""The columns that all rows of a Codex thread share."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hypaware.clients.client import ImportItem
from hypaware.clients.reader import SourceReader, TimeWindow
from hypaware.model.datasets import Row
from tests.support.codex_rollouts import NAME, PROVIDER, THREAD, as_bytes, imported, line, meta, says, turn
from tests.support.history import NOWHERE, pin

HI = says("user", "Hi.")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def shared(folder: Path, *lines: Any, name: str = NAME) -> Row:
    rows, _ = imported(folder, [*lines, HI], name)
    return rows[0]


def test_a_thread_is_the_conversation_and_may_belong_to_another_session(folder: Path) -> None:
    alone = shared(folder, meta(id="t1"))
    assert (alone["session_id"], alone["conversation_id"]) == ("t1", "t1")
    assert alone["attributes"]["codex"]["session_id"] == "t1"
    assert "thread_id" not in alone["attributes"]["codex"]

    of_session = shared(folder, meta(id="t1", session_id="s1"))
    assert (of_session["session_id"], of_session["conversation_id"]) == ("s1", "t1")
    assert (
        of_session["attributes"]["codex"] | {"session_id": "s1", "thread_id": "t1"} == of_session["attributes"]["codex"]
    )


@pytest.mark.parametrize("own", [None, "", "  ", 7, ["t"]])
def test_a_thread_without_an_id_is_named_by_the_uuid_in_the_files_name(folder: Path, own: Any) -> None:
    assert shared(folder, meta(id=own))["conversation_id"] == THREAD


def test_a_thread_without_any_uuid_is_named_by_its_file(folder: Path) -> None:
    assert shared(folder, meta(id=None), name="rollout-mine.jsonl")["conversation_id"] == "rollout-mine"


def test_the_first_session_meta_wins(folder: Path) -> None:
    rows, reading = imported(folder, [meta(id="t1"), meta(id="t2", originator="other"), HI])

    assert (rows[0]["conversation_id"], rows[0].get("entrypoint")) == ("t1", None)
    assert reading.skipped == {"bookkeeping": 1}


def test_provider_source_and_client_are_set(folder: Path) -> None:
    row = shared(folder, meta(cli_version="0.166.0"))

    assert (row["provider"], row["conversation_source"], row["client_name"]) == ("openai", "codex", "codex")
    assert row["client_version"] == "0.166.0"
    assert row["attributes"]["client"] == {"name": "codex", "version": "0.166.0"}


def test_session_fields_become_columns(folder: Path) -> None:
    row = shared(
        folder,
        meta(
            originator="codex_exec",
            thread_source="subagent",
            parent_thread_id="t0",
            model_provider="openai",
            source="exec",
            git={"branch": "main", "commit_hash": "abc", "repository_url": "git@host:x.git", "has_changes": True},
        ),
    )

    columns = ("entrypoint", "user_type", "is_sidechain", "parent_thread_id", "git_branch", "head_sha", "git_remote")
    assert [row[name] for name in columns] == [
        *("codex_exec", "subagent", True, "t0"),
        *("main", "abc", "git@host:x.git"),
    ]
    assert row["attributes"]["codex"] == {
        "identity_source": "gateway_fallback",
        "session_id": THREAD,
        "workspace": "/home/dev",
        "git_origin_url": "git@host:x.git",
        "git_commit": "abc",
        "originator": "codex_exec",
        "thread_source": "subagent",
        "model_provider": "openai",
        "source": "exec",
        "has_changes": True,
    }
    assert "repo_root" not in row


@pytest.mark.parametrize(("source", "expected"), [("user", False), ("subagent", True), (None, None), (5, None)])
def test_only_threads_of_subagents_are_sidechains(folder: Path, source: Any, expected: bool | None) -> None:
    assert shared(folder, meta(thread_source=source)).get("is_sidechain") is expected


def test_the_older_names_of_git_fields_are_recognized(folder: Path) -> None:
    row = shared(folder, meta(git={"commit": "abc", "origin_url": "https://host/x"}))
    assert (row["head_sha"], row["git_remote"]) == ("abc", "https://host/x")


def test_a_remote_is_stored_without_its_password(folder: Path) -> None:
    row = shared(folder, meta(git={"repository_url": "https://me:secret@host/x.git"}))

    assert row["git_remote"] == row["attributes"]["codex"]["git_origin_url"] == "https://host/x.git"
    assert "secret" not in str(row)


def test_a_source_that_is_not_text_is_left_out(folder: Path) -> None:
    row = shared(folder, meta(source={"subagent": {"thread_spawn": {"depth": 1}}}))
    assert "source" not in row["attributes"]["codex"]


def test_model_and_sandbox_are_those_of_the_first_turn(folder: Path) -> None:
    first = turn(model="gpt-5.5", sandbox_policy={"type": "read-only"})
    row = shared(folder, meta(), first, turn(model="gpt-6", sandbox_policy={"type": "danger-full-access"}))

    assert (row["model"], row["permission_mode"]) == ("gpt-5.5", "read-only")
    assert row["attributes"]["codex"]["sandbox"] == "read-only"


def test_the_older_name_of_the_sandbox_is_recognized(folder: Path) -> None:
    assert shared(folder, meta(), turn(sandbox="workspace-write"))["permission_mode"] == "workspace-write"


@pytest.mark.parametrize(
    ("of_session", "of_turns", "expected"),
    [
        ("/a", ["/b"], "/a"),
        ("", ["/b", "/c"], "/b"),
        ("relative", ["/b"], "/b"),
        (None, [None, " ", "/c"], "/c"),
        (7, [], None),
        ("C:\\code", [], "C:\\code"),
    ],
)
def test_the_folder_is_the_first_absolute_one_of_session_and_turns(
    folder: Path, of_session: Any, of_turns: list[Any], expected: str | None
) -> None:
    row = shared(folder, meta(cwd=of_session), *(turn(cwd=each) for each in of_turns))

    assert row.get("cwd") == expected
    assert row["attributes"]["codex"].get("workspace") == expected


def test_the_conversation_starts_with_its_session(folder: Path) -> None:
    assert shared(folder, meta())["conversation_started_at"] == "2026-11-15T07:16:29.842000Z"


def test_a_session_without_a_time_starts_with_its_first_timed_line(folder: Path) -> None:
    lines = [line("session_meta", {"id": "t1"}, at=None), line("world_state", {}, at="2026-11-15T07:00:00Z")]
    assert shared(folder, *lines)["conversation_started_at"] == "2026-11-15T07:00:00.000000Z"


def test_a_message_has_the_time_of_its_line(folder: Path) -> None:
    row = shared(folder, meta())

    assert row["message_created_at"] == "2026-11-15T07:16:30.000000Z"
    assert "time_source" not in row["attributes"]["gateway"]


@pytest.mark.parametrize(
    ("started", "name", "expected", "source"),
    [
        ("2026-11-15T07:00:00Z", NAME, "2026-11-15T07:00:00.000000Z", "session_start"),
        (None, NAME, "2026-11-15T07:16:29.000000Z", "file_name"),
        (None, "rollout-x.jsonl", None, "file_mtime"),
        (None, "rollout-2026-99-99T07-16-29-x.jsonl", None, "file_mtime"),
    ],
)
def test_a_message_without_a_time_gets_a_fallback_time_with_its_origin(
    folder: Path, started: str | None, name: str, expected: str | None, source: str
) -> None:
    timeless = line("response_item", HI["payload"], at=None)
    rows, reading = imported(folder, [line("session_meta", {"timestamp": started}, at=None), timeless], name)
    written = datetime.fromtimestamp(reading.source.mtime_ns / 10**9, UTC)

    of_file = written.isoformat(timespec="microseconds").replace("+00:00", "Z")
    assert rows[0]["message_created_at"] == (expected or of_file)
    assert rows[0]["attributes"]["gateway"]["time_source"] == source


def test_a_file_is_one_item_with_its_provenance(folder: Path) -> None:
    path = folder / NAME
    path.write_bytes(as_bytes([meta(id="t1", session_id="s1"), HI]))
    with SourceReader(pin(path)) as reading:
        (item,) = PROVIDER.read(reading, NOWHERE)

    assert isinstance(item, ImportItem)
    assert (item.dataset, item.kind) == ("ai_gateway_messages", "ai_gateway.projected_exchange")
    assert (item.provenance.client_name, item.provenance.native_id) == ("codex", "t1")
    assert item.provenance.source_path == str(path)


def test_a_window_excludes_lines_outside_it_and_keeps_lines_without_a_time(folder: Path) -> None:
    times = [None, "2026-11-14T23:59:59Z", "2026-11-15T00:00:00Z", "2026-11-16T00:00:00+01:00", "2026-11-16T00:00:00Z"]
    lines = [line("response_item", says("user", str(at))["payload"], at=at) for at in times]
    window = TimeWindow("2026-11-15T00:00:00.000000Z", "2026-11-15T23:00:00.000000Z")
    rows, reading = imported(folder, [meta(), turn(), *lines], window=window)

    assert [row["content_text"] for row in rows] == ["None", times[2], times[3]]
    assert [row["message_index"] for row in rows] == [0, 2, 3]
    assert len(reading.left_out) == 2


def test_lines_inherited_by_a_subagent_belong_to_its_parent(folder: Path) -> None:
    inherited = line("response_item", says("user", "Earlier.", id="m1")["payload"], ordinal=1)
    own = line("response_item", says("user", "Mine.", id="m2")["payload"], ordinal=2)
    rows, reading = imported(folder, [meta(subagent_history_start_ordinal=2), inherited, own])

    assert [row["content_text"] for row in rows] == ["Mine."]
    assert reading.skipped == {"inherited": 1}
