"""Purged rows never enter the lake again, and without purges the checks cost nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hypaware.backfill.dry_run import run_dry
from hypaware.config import Config
from hypaware.errors import LakeError
from hypaware.home import Home
from hypaware.lake import prepare, tombstones
from hypaware.lake.build import BuildResult
from hypaware.lake.prepare import drop_withdrawn
from hypaware.lake.tombstones import NO_PURGES, PurgeFilter, Tombstone, hash_purged_value
from hypaware.model.datasets import hash_row_key
from hypaware.spool import segments
from tests.support.claude_files import turns, write
from tests.support.light_home import DATASET, append, flush, import_history
from tests.support.light_lake import read_lake
from tests.support.rows import MESSAGES, rows

AT = "2026-11-15T00:00:00+00:00"


def tombstone(kind: str, value: str) -> Tombstone:
    return Tombstone(kind, value, f"hyp purge --{kind} {value}")


def keys(raw: list[dict[str, Any]]) -> set[bytes]:
    found = (
        hash_row_key(MESSAGES, {**row, "part_id": f"{row['message_id']}#{row['part_index']}"}, None) for row in raw
    )
    return {key for key in found if key is not None}


def test_reading_missing_tombstones_leaves_no_trace(home: Home) -> None:
    append(home, rows(1))
    recorded = tombstones.read_tombstones(home)
    assert (recorded.purge_filter, recorded.has_parts, recorded.find({b"x"})) == (NO_PURGES, False, set())
    assert tombstones.list_unfinished_purges(home) == []
    assert tombstones.revoke(home, [tombstone("session", "s")], AT) == 0
    assert not home.tombstones.exists()


def test_without_purges_there_is_no_row_filter() -> None:
    assert NO_PURGES.predicate(MESSAGES) is None
    assert PurgeFilter(frozenset([b"x"])).predicate(MESSAGES) is not None


@pytest.mark.hazard(85)
def test_a_purged_session_excludes_spooled_rows_and_later_ones(home: Home) -> None:
    append(home, [*rows(3), *rows(2, start=3, session_id="open")])
    tombstones.create_tombstones(home, [tombstone("session", "session-1")], AT)
    report = flush(home)
    assert (report.rows.written, report.rows.purged, report.rows.duplicate, report.rows.rejected) == (2, 3, 0, 0)
    append(home, rows(1, start=9))
    assert flush(home).rows.purged == 1
    assert {row["session_id"] for row in read_lake(home, DATASET)} == {"open"}
    assert segments.list_sealed_segments(segments.spool_folder(home, DATASET)) == []


@pytest.mark.hazard(85)
def test_a_purged_part_is_excluded_under_any_session(home: Home) -> None:
    (purge,) = tombstones.create_tombstones(home, [tombstone("source", "claude")], AT)
    tombstones.add_parts(home, purge, keys(rows(3)))
    append(home, [*rows(4, session_id="fork"), *rows(2, start=2)])
    report = flush(home)
    # The fourth and fifth message are added once; both copies of the third are excluded.
    assert (report.rows.written, report.rows.purged, report.rows.duplicate) == (1, 4, 1)
    assert [row["message_id"] for row in read_lake(home, DATASET)] == ["message-3"]


def test_a_purge_before_a_time_keeps_rows_of_exactly_that_time(home: Home) -> None:
    tombstones.create_tombstones(home, [tombstone("before", "2026-11-15T07:00:02.000000Z")], AT)
    append(home, rows(4))
    assert flush(home).rows.purged == 2
    assert sorted(row["message_id"] for row in read_lake(home, DATASET)) == ["message-2", "message-3"]


def test_a_reject_of_a_purged_session_is_not_stored(home: Home) -> None:
    folder = segments.spool_folder(home, DATASET)
    folder.create()
    lines = [
        {"n": 0, "v": 1, "row": {**rows(1)[0], "role": 7, "content_text": "planted"}},
        {"n": 1, "v": 1, "row": {**rows(1, start=1)[0], "role": 7, "session_id": "open"}},
        {"n": 2, "v": 1, "row": {**rows(1, start=2)[0], "role": 7, "session_id": "fork", "part_id": "message-2#0"}},
    ]
    (folder.sealed / segments.sealed_file_name(segments.new_segment_name(), 3)).write_text(
        "".join(json.dumps(line) + "\n" for line in lines)
    )
    tombstones.create_tombstones(home, [tombstone("session", "session-1")], AT)
    (purge,) = tombstones.create_tombstones(home, [tombstone("source", "x")], AT)
    tombstones.add_parts(home, purge, keys(rows(1, start=2)))
    report = flush(home)
    assert (report.rows.rejected, report.rows.purged) == (1, 2)
    kept = "".join(path.read_text() for path in folder.rejected.iterdir())
    assert "open" in kept
    assert "planted" not in kept
    assert "fork" not in kept


def test_rows_of_a_revoked_purge_are_accepted_again_and_others_stay_excluded(home: Home) -> None:
    first, _ = tombstones.create_tombstones(
        home, [tombstone("session", "session-1"), tombstone("session", "second")], AT
    )
    tombstones.add_parts(home, first, keys(rows(2)))
    assert tombstones.revoke(home, [tombstone("session", "session-1")], AT) == 1
    append(home, [*rows(2), *rows(2, start=2, session_id="second")])
    report = flush(home)
    assert (report.rows.written, report.rows.purged) == (2, 2)


def test_revoking_a_time_revokes_earlier_times_but_not_later_ones(home: Home) -> None:
    tombstones.create_tombstones(home, [tombstone("before", "2026-10-01T00:00:00.000000Z")], AT)
    tombstones.create_tombstones(home, [tombstone("before", "2026-11-01T00:00:00.000000Z")], AT)
    assert tombstones.revoke(home, [tombstone("before", "2026-10-15T00:00:00.000000Z")], AT) == 1
    assert tombstones.read_tombstones(home).purge_filter.before == "2026-11-01T00:00:00.000000Z"
    assert tombstones.revoke(home, [tombstone("before", "2026-12-01T00:00:00.000000Z")], AT) == 1
    assert tombstones.read_tombstones(home).purge_filter == NO_PURGES


def test_a_part_of_two_purges_is_excluded_until_both_are_revoked(home: Home) -> None:
    one, two = tombstones.create_tombstones(home, [tombstone("session", "a"), tombstone("cwd", "/work")], AT)
    for purge in (one, two):
        tombstones.add_parts(home, purge, keys(rows(1)))
    tombstones.revoke(home, [tombstone("session", "a")], AT)
    assert tombstones.read_tombstones(home).find(keys(rows(1))) == keys(rows(1))
    tombstones.revoke(home, [tombstone("cwd", "/work")], AT)
    assert not tombstones.read_tombstones(home).has_parts


def test_the_command_is_stored_only_while_a_purge_is_unfinished(home: Home) -> None:
    (purge,) = tombstones.create_tombstones(home, [tombstone("session", "a-name-to-hide")], AT)
    assert tombstones.list_unfinished_purges(home) == ["hyp purge --session a-name-to-hide"]
    tombstones.finish_purges(home, [purge], 1, AT)
    assert tombstones.list_unfinished_purges(home) == []
    assert not any(b"a-name-to-hide" in path.read_bytes() for path in home.lake.iterdir())
    assert tombstones.read_tombstones(home).purge_filter.sessions == {hash_purged_value("session", "a-name-to-hide")}


def test_unreadable_tombstones_keep_all_rows_out(home: Home) -> None:
    append(home, rows(3))
    home.lake.mkdir()
    home.tombstones.write_bytes(b"this is no database, whatever its name says" * 100)
    with pytest.raises(LakeError) as refused:
        flush(home)
    assert refused.value.kind == "tombstones_unusable"
    home.tombstones.unlink()
    assert flush(home).rows.written == 3


def test_looking_up_very_many_keys_at_once_gives_the_same_result(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    (purge,) = tombstones.create_tombstones(home, [tombstone("source", "x")], AT)
    tombstones.add_parts(home, purge, keys(rows(1_200)))
    recorded, asked = tombstones.read_tombstones(home), keys(rows(1_000, start=900))
    found = recorded.find(asked)
    assert len(found) == 300
    monkeypatch.setattr(tombstones, "_LOAD_ALL_ABOVE", 10)
    assert recorded.find(asked) == found
    monkeypatch.setattr(tombstones, "_MAX_LOADED", 100)
    assert recorded.find(asked) == found


@pytest.mark.hazard(85)
def test_an_import_restores_no_purged_row_and_its_dry_run_predicts_that(home: Home, tmp_path: Path) -> None:
    projects = tmp_path / "claude" / "projects" / "-project"
    environment = {"HOME": "/nonexistent", "CLAUDE_CONFIG_DIR": str(projects.parents[1])}
    write(projects / "gone.jsonl", turns("gone", 4))
    write(projects / "kept.jsonl", turns("kept", 3))
    # A fork: the lines of the purged session under its own id, and two more turns.
    fork = [{**line, "sessionId": "fork"} for line in turns("gone", 6)]
    write(projects / "fork.jsonl", iter(fork))
    tombstones.create_tombstones(home, [tombstone("session", "gone")], AT)
    (purge,) = tombstones.create_tombstones(home, [tombstone("source", "x")], AT)
    gone = {f"{line['uuid']}#0" for line in turns("gone", 4)}
    parts = (hash_row_key(MESSAGES, {"part_id": part}, None) for part in gone)
    tombstones.add_parts(home, purge, {key for key in parts if key is not None})
    append(home, rows(1, session_id="kept", start=77))
    flush(home)
    planned = run_dry(home, Config(), {"providers": ["claude"], "environment": environment}, lambda *_: None)[
        "providers"
    ][0]
    outcome = import_history(home, environment)
    done = outcome.as_json()
    for key in ("rows_written", "rows_skipped", "rows_rejected", "rows_purged", "lines_skipped", "summary"):
        assert planned[key] == done[key], key
    assert (done["rows_written"], done["rows_purged"], done["rows_skipped"]) == (15, 24, 24)
    assert done["lines_skipped"]["purged"] == 24
    assert done["summary"]["tokens"]["output_tokens"] == 50
    assert {row["session_id"] for row in read_lake(home, DATASET)} == {"kept", "fork"}
    assert import_history(home, environment).files_unchanged == 3


def test_withdrawn_rows_are_not_counted_as_purged() -> None:
    """A source that fails halfway is imported again with all of its rows."""
    built = BuildResult()
    built.purged.extend([1, 2, 11])
    built.withdrawn.append(range(10, 20))
    assert list(drop_withdrawn(built).purged) == [1, 2]


def test_ten_thousand_purged_sessions_are_distinguished() -> None:
    closed = PurgeFilter(frozenset(hash_purged_value("session", f"purged-{number}") for number in range(10_000)))
    bar = closed.predicate(MESSAGES)
    assert bar is not None
    assert [bar({"session_id": name}) for name in ("purged-7", "other", "purged-9999", "purged-10000")] == [
        True,
        False,
        True,
        False,
    ]


def test_a_line_that_is_not_a_row_belongs_to_no_purge(home: Home) -> None:
    tombstones.create_tombstones(home, [tombstone("session", "session-1")], AT)
    recorded = tombstones.read_tombstones(home)
    assert not prepare.is_purged(recorded, MESSAGES, None, b"not JSON")
    assert not prepare.is_purged(recorded, MESSAGES, None, b'["session-1"]')
    assert prepare.is_purged(recorded, MESSAGES, None, b'{"session_id":"session-1"}')
