"""Live rows and their transcript in a lake: each part has one row and one sequence in any order of arrival."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypaware.faults import list_crash_points
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.lake import health, key_index
from hypaware.lake.key_index import KeyIndex
from hypaware.lake.parquet import check_file_row_ids
from hypaware.lake.table import TableChange
from hypaware.maintain import compact_plan
from hypaware.maintain.context import MaintenanceContext
from hypaware.model.datasets import BATCH_ID, ROW_ID, SEQ, coerce_row
from hypaware.spool import segments
from hypaware.spool.writer import Spool
from hypaware.testing.fault_injection import run_in_child
from tests.support.compaction_cases import SmallFiles, due_now
from tests.support.light_home import DATASET, NO_TIMER, append, flush
from tests.support.light_lake import read_lake
from tests.support.light_purge import holders, purge
from tests.support.live_rows import Part
from tests.support.rows import MESSAGES

CONVERSATION = [
    Part(0),
    Part(1, "answer"),
    Part(2, "call"),
    Part(3, text="continue"),
    Part(4, "answer", "done"),
    Part(5, text="continue"),
]
LIVE = [part.live() for part in CONVERSATION]
NATIVE = [part.native() for part in CONVERSATION]
NATIVE_IDS = {f"{part.native_id}#0" for part in CONVERSATION}


def ids(home: Home) -> Counter[str]:
    return Counter(row["part_id"] for row in read_lake(home, DATASET))


def compact(home: Home, **how: Any) -> None:
    assert SmallFiles(home).compact(**how).errors == []


def gateway_of(row: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(row["attributes"])["gateway"]
    return found


@pytest.mark.hazard(68)
def test_a_transcript_settles_the_rows_that_the_gateway_recorded_first(home: Home) -> None:
    append(home, LIVE)
    flush(home)
    before = {row[SEQ]: row for row in read_lake(home, DATASET)}
    append(home, NATIVE)
    report = flush(home)
    assert (report.rows.written, report.rows.settled, report.rows.duplicate) == (0, 6, 0)
    assert due_now(home) == [DATASET]
    compact(home)
    assert health.list_settlements(home, DATASET) == []
    after = {row[SEQ]: row for row in read_lake(home, DATASET)}
    assert after.keys() == before.keys(), "a row keeps its sequence and is not delivered again"
    assert {row["part_id"] for row in after.values()} == NATIVE_IDS
    for seq, row in after.items():
        assert (row[ROW_ID], row[BATCH_ID]) == (before[seq][ROW_ID], before[seq][BATCH_ID])
        assert gateway_of(row) == {"source": "live", "exchange_id": "e1", "previous_part_id": before[seq]["part_id"]}
        assert (row["cwd"], row["git_branch"]) == ("/srv/shop", "main")
        assert json.loads(row["attributes"])["claude"] == {"version": "2"}
    assert due_now(home) == []
    (file,) = metadata.iter_live_files(SmallFiles(home).table_metadata)
    assert check_file_row_ids(DATASET, file.path).wrong == 0, "the row id check accepts settled rows"


@pytest.mark.hazard(68)
def test_live_rows_of_an_imported_conversation_are_dropped(home: Home) -> None:
    append(home, NATIVE)
    flush(home)
    before = read_lake(home, DATASET)
    append(home, LIVE)
    report = flush(home)
    assert (report.rows.written, report.rows.settled, report.rows.duplicate) == (0, 0, 6)
    assert read_lake(home, DATASET) == before


@pytest.mark.parametrize("both", [[*LIVE, *NATIVE], [*NATIVE, *LIVE]])
def test_native_rows_are_kept_if_both_records_are_in_one_flush(home: Home, both: list[dict[str, Any]]) -> None:
    append(home, both)
    report = flush(home)
    assert (report.rows.written, report.rows.settled, report.rows.duplicate) == (6, 0, 6)
    assert set(ids(home)) == NATIVE_IDS
    assert health.list_settlements(home, DATASET) == []


def _settled(home: Home) -> None:
    append(home, LIVE)
    flush(home)
    append(home, NATIVE)
    flush(home)


def _carried_out(home: Home) -> None:
    _settled(home)
    compact(home)


def _left_out(home: Home) -> None:
    append(home, NATIVE)
    flush(home)
    append(home, LIVE)
    flush(home)


@pytest.mark.hazard(83)
@pytest.mark.parametrize("way", [_settled, _carried_out, _left_out])
@pytest.mark.parametrize("lost", [False, True], ids=["", "index-lost"])
def test_neither_record_of_a_settled_part_is_added_again(home: Home, way: Callable[[Home], None], lost: bool) -> None:
    """The client repeats its history, the transcript is imported again, and the index is rebuilt."""
    way(home)
    if lost:
        home.keys.unlink()
    append(home, [*LIVE, *NATIVE])
    report = flush(home)
    assert (report.rows.written, report.rows.settled, report.rows.duplicate) == (0, 0, 12)
    compact(home, force=True)
    assert set(ids(home)) == NATIVE_IDS
    assert max(ids(home).values()) == 1


def test_a_third_record_under_another_id_becomes_a_separate_row(home: Home) -> None:
    """Matched rows do not match again: the same text once more is another part."""
    _carried_out(home)
    append(home, [Part(7, text="continue").live(), Part(7, text="continue").native()])
    assert flush(home).rows.written == 1
    assert len(ids(home)) == 7


def test_rows_of_other_gateways_are_never_settled_here(home: Home) -> None:
    """Rows that a server receives were settled by their sender."""
    for some in (LIVE, NATIVE):
        with Spool(home, NO_TIMER) as spool:
            spool.append_coerced(DATASET, [coerce_row(MESSAGES, row, "another-home") for row in some])
        assert flush(home).rows.written == 6
    with closing(KeyIndex(home.keys)) as index:
        assert not index.has_match_keys(DATASET)


def test_an_import_without_live_rows_stores_no_match_keys(home: Home) -> None:
    append(home, NATIVE)
    flush(home)
    with closing(KeyIndex(home.keys)) as index:
        assert not index.has_match_keys(DATASET)


@pytest.mark.hazard(83)
def test_the_history_of_a_resumed_session_matches_rows_imported_days_before(home: Home) -> None:
    append(home, NATIVE)
    flush(home)
    append(home, [part.live(late=True, raw_frame=None) for part in CONVERSATION])
    assert flush(home).rows.written == 0


@pytest.mark.hazard(101)
def test_a_settled_row_moves_to_the_day_of_its_native_row(home: Home) -> None:
    append(home, [Part(0).live(late=True), Part(1).live(message_created_at="2026-11-18T07:01:00Z")])
    flush(home)
    before = {row[SEQ]: row[ROW_ID] for row in read_lake(home, DATASET)}
    append(home, [Part(0).native()])
    assert flush(home).rows.settled == 1
    compact(home)
    after = read_lake(home, DATASET)
    assert {row[SEQ]: row[ROW_ID] for row in after} == before
    assert [(row["part_id"], row["date"]) for row in sorted(after, key=itemgetter(SEQ))] == [
        ("native-0#0", "2026-11-15"),
        ("live-1#0", "2026-11-18"),
    ]
    days = {file.path.parent.name for file in metadata.iter_live_files(SmallFiles(home).table_metadata)}
    assert days == {"message_created_at_day=2026-11-15", "message_created_at_day=2026-11-18"}


SHOWN = [part.shown(late=True) for part in CONVERSATION]
USAGE = {"input_tokens": 12, "output_tokens": 7}
NOTED = [
    part.native(
        attributes={"codex": {"source": "exec", "sandbox": "off"}, **({"usage": USAGE} if part.kind == "call" else {})}
    )
    for part in CONVERSATION
]


@pytest.mark.hazard(101)
def test_a_row_made_from_repeated_history_takes_usage_time_and_facts_of_its_transcript(home: Home) -> None:
    """Its id is the native one from the start."""
    codex = {"codex": {"sandbox": "on", "has_changes": False}}
    known = [{**row, "attributes": {**row["attributes"], **codex}} for row in SHOWN]
    append(home, known)
    flush(home)
    before = {row[SEQ]: row for row in read_lake(home, DATASET)}
    append(home, NOTED)
    report = flush(home)
    assert (report.rows.written, report.rows.settled, report.rows.duplicate) == (0, 6, 0)
    compact(home)
    after = {row[SEQ]: row for row in read_lake(home, DATASET)}
    assert {seq: (row[ROW_ID], row["part_id"]) for seq, row in after.items()} == {
        seq: (row[ROW_ID], row["part_id"]) for seq, row in before.items()
    }, "no row is delivered again"
    assert {(row["date"], row["cwd"], row["git_branch"]) for row in after.values()} == {
        ("2026-11-15", "/srv/shop", "main")
    }
    attributes = [json.loads(row["attributes"]) for row in after.values()]
    assert [each["usage"] for each in attributes if "usage" in each] == [USAGE]
    assert all(each["codex"] == {"source": "exec", "sandbox": "off", "has_changes": False} for each in attributes)
    assert not any("time_source" in each["gateway"] for each in attributes)
    assert check_file_row_ids(DATASET, next(metadata.iter_live_files(SmallFiles(home).table_metadata)).path).wrong == 0


@pytest.mark.hazard(101)
def test_usage_that_only_the_live_row_has_is_kept(home: Home) -> None:
    """The client was killed before it noted the usage of the response."""
    live = Part(2, "call").shown()
    append(home, [{**live, "attributes": {**live["attributes"], "codex": {}, "usage": USAGE}}])
    flush(home)
    append(home, [Part(2, "call").native(attributes={"codex": {"source": "exec"}})])
    flush(home)
    compact(home)
    (row,) = read_lake(home, DATASET)
    assert json.loads(row["attributes"])["usage"] == USAGE


@pytest.mark.hazard(101)
@pytest.mark.parametrize("both", [[*SHOWN, *NOTED], [*NOTED, *SHOWN]])
def test_of_two_rows_with_the_same_id_in_one_flush_the_native_one_is_kept(
    home: Home, both: list[dict[str, Any]]
) -> None:
    append(home, both)
    report = flush(home)
    assert (report.rows.written, report.rows.settled, report.rows.duplicate) == (6, 0, 6)
    assert {row["git_branch"] for row in read_lake(home, DATASET)} == {"main"}


@pytest.mark.hazard(101)
@pytest.mark.parametrize("lost", ["", "index", "settled", "settled and index"])
def test_a_row_with_its_own_id_is_settled_once(home: Home, lost: str) -> None:
    append(home, SHOWN)
    flush(home)
    append(home, NOTED)
    flush(home)
    if "settled" in lost:
        compact(home)
    if "index" in lost:
        home.keys.unlink()
    append(home, [*SHOWN, *NOTED])
    report = flush(home)
    assert (report.rows.written, report.rows.settled, report.rows.duplicate) == (0, 0, 12)
    compact(home, force=True)
    assert ids(home) == Counter(NATIVE_IDS)


@pytest.mark.hazard(101)
def test_an_index_of_an_older_version_learns_which_rows_can_be_settled(home: Home) -> None:
    append(home, SHOWN)
    flush(home)
    with closing(sqlite3.connect(home.keys, isolation_level=None)) as index:
        for table in ("matches", "matching"):
            index.execute(f"DELETE FROM {table}")
        index.execute("PRAGMA user_version = 0")
    append(home, NOTED)
    assert flush(home).rows.settled == 6


@pytest.mark.hazard(101)
@pytest.mark.parametrize("lost", [False, True], ids=["", "index-lost"])
def test_a_client_that_starts_to_show_ids_within_a_session_has_one_row_for_each_part(home: Home, lost: bool) -> None:
    append(home, LIVE[:4])
    flush(home)
    before = {row[SEQ] for row in read_lake(home, DATASET)}
    append(home, SHOWN)
    report = flush(home)
    assert (report.rows.written, report.rows.duplicate) == (2, 4)
    if lost:
        home.keys.unlink()
    append(home, NOTED)
    assert flush(home).rows.settled == 6
    compact(home)
    assert ids(home) == Counter(NATIVE_IDS)
    assert {row[SEQ] for row in read_lake(home, DATASET)} > before


def test_a_part_shown_without_its_id_after_one_with_it_is_dropped(home: Home) -> None:
    append(home, SHOWN[:4])
    flush(home)
    append(home, LIVE)
    assert flush(home).rows.written == 2
    append(home, NOTED)
    assert flush(home).rows.settled == 6
    compact(home)
    assert ids(home) == Counter(NATIVE_IDS)


def test_equal_texts_shown_with_and_without_an_id_at_their_own_times_are_two_parts(home: Home) -> None:
    append(home, [Part(3, text="continue").live()])
    flush(home)
    append(home, [Part(5, text="continue").shown()])
    assert flush(home).rows.written == 1


FORK = "session-2"
COPIED = [{**row, "session_id": FORK} for row in NATIVE]
FORK_HISTORY = [
    {**part.live(late=True, raw_frame=None), "session_id": FORK, "message_id": f"fork-{part.number}"}
    for part in CONVERSATION
]


@pytest.mark.hazard(66)
@pytest.mark.parametrize("known", [True, False], ids=["", "first-live-rows"])
def test_the_history_of_a_fork_seen_live_stays_with_the_session_that_it_was_forked_from(
    home: Home, known: bool
) -> None:
    """The daemon was restarted, so the gateway does not recognize the fork."""
    append(home, [*NATIVE, *([Part(20, session="other").live()] if known else [])])
    flush(home)
    # The fork goes on with texts of the first session.
    own = [Part(9, session=FORK), Part(10, text="continue", session=FORK), Part(11, "answer", "done", session=FORK)]
    with Spool(home, NO_TIMER) as spool:
        spool.append(DATASET, FORK_HISTORY, deferrable=True)
        spool.append(DATASET, [part.live() for part in own], deferrable=True)
    append(home, [*COPIED, *(part.native() for part in own)])
    assert flush(home, skip_deferred=True).rows.written == 3
    report = flush(home)
    assert (report.rows.written, report.rows.duplicate) == (0, 9)
    assert Counter(row["session_id"] for row in read_lake(home, DATASET))[FORK] == 3
    append(home, COPIED)
    flush(home)
    append(home, [Part(12, text="continue", session=FORK).live()])
    assert flush(home).rows.written == 1, "a copy that is read again leaves nothing to match"


@pytest.mark.hazard(66)
def test_the_history_of_a_fork_is_dropped_in_the_flush_of_its_transcript(home: Home) -> None:
    append(home, [*NATIVE, Part(20, session="other").live()])
    flush(home)
    append(home, [*FORK_HISTORY, *COPIED])
    assert flush(home).rows.written == 0


def test_a_transcript_that_is_read_again_leaves_no_key_for_a_later_text(home: Home) -> None:
    """A live row must not match a native row that is in the lake only once."""
    append(home, LIVE)
    flush(home)
    append(home, NATIVE)
    flush(home)
    compact(home)
    home.keys.unlink()
    append(home, NATIVE)
    assert flush(home).rows.duplicate == 6
    append(home, [Part(6, text="continue").live()])
    assert flush(home).rows.written == 1


POINTS = [
    point.name
    for point in list_crash_points()
    if point.name.startswith(("lake.thin", "lake.commit", "lake.record", "lake.keys"))
    or point.name in ("lake.build.after-write", "lake.remove.before-unlink", "state.commit.after-commit")
]
COMPACTION_POINTS = [
    point.name
    for point in list_crash_points()
    if point.name.startswith(("maintain.compact", "lake.settlements")) and "after-write" not in point.name
]


@pytest.mark.hazard(4)
@pytest.mark.parametrize("point", POINTS)
def test_a_flush_killed_during_settlement_leaves_each_part_once(home: Home, point: str) -> None:
    append(home, LIVE[:4])
    flush(home)
    append(home, [*NATIVE, Part(9).native()])
    run_in_child(lambda: (flush(home), None)[1], crash_at=point)
    flush(home)
    compact(home, force=True)
    assert set(ids(home)) == {*NATIVE_IDS, "native-9#0"}
    assert max(ids(home).values()) == 1
    append(home, [*LIVE, *NATIVE])
    assert flush(home).rows.written == 0


@pytest.mark.hazard(38)
@pytest.mark.parametrize("point", COMPACTION_POINTS)
def test_a_compaction_killed_while_it_applies_settlements_is_repeated(home: Home, point: str) -> None:
    _settled(home)
    assert not run_in_child(lambda: compact(home), crash_at=point)
    compact(home, force=True)
    assert set(ids(home)) == NATIVE_IDS
    assert max(ids(home).values()) == 1
    assert health.list_settlements(home, DATASET) == []


@pytest.mark.hazard(85)
def test_a_purged_conversation_does_not_return_under_its_other_ids(home: Home) -> None:
    """Only the transcript has the purged folder: settlements are applied first, so that the rows are found."""
    _settled(home)
    append(home, [Part(20).live(cwd="/srv/other")])
    flush(home)
    report = purge(home, "cwd", "/srv/shop")
    assert report["remaining"] == []
    assert set(ids(home)) == {"live-20#0"}
    history = [part.live(late=True, raw_frame=None) for part in CONVERSATION]
    append(home, [*LIVE, *NATIVE, *history])
    assert flush(home).rows.written == 0
    assert holders(home, "text of 0", "native-0") == set()


def test_a_settlement_is_indexed_before_it_is_removed(home: Home) -> None:
    append(home, LIVE[:1])
    flush(home)
    append(home, NATIVE[:1])
    assert not run_in_child(lambda: (flush(home), None)[1], crash_at="lake.keys.before-commit")
    compact(home)
    append(home, NATIVE[:1])
    assert flush(home).rows.written == 0
    assert ids(home) == Counter({"native-0#0": 1})


def test_a_settled_row_is_not_settled_again_and_the_other_row_is_added(home: Home) -> None:
    """In an older copy of the index, the live row is not matched yet."""
    append(home, [Part(3, text="continue").live()])
    flush(home)
    with closing(sqlite3.connect(home.keys)) as index:
        older = index.serialize()
    append(home, [Part(3, text="continue").native()])
    flush(home)
    compact(home)
    key_index.remove_index(home.keys)
    home.keys.write_bytes(older)
    append(home, [Part(5, text="continue").native()])
    assert flush(home).rows.settled == 1
    compact(home)
    flush(home)
    assert set(ids(home)) == {"native-3#0", "native-5#0"}


@pytest.mark.hazard(85)
def test_a_transcript_does_not_restore_rows_that_were_purged_before_its_import(home: Home) -> None:
    append(home, [part.live(cwd="/srv/shop") for part in CONVERSATION])
    flush(home)
    assert purge(home, "cwd", "/srv/shop")["remaining"] == []
    append(home, NATIVE)
    report = flush(home)
    assert (report.rows.written, report.rows.purged) == (0, 6)
    later = Part(5, text="continue").native(message_id="later", message_created_at="2036-01-01T00:00:00Z")
    append(home, [later])
    assert flush(home).rows.written == 1, "a text after the purge is a new part"


def test_settlements_over_two_days_are_applied_in_batches(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is out of time must still make progress."""
    monkeypatch.setattr(compact_plan, "_BATCH_TASKS", 1)
    append(home, [Part(0).live(), Part(1).live(message_created_at="2026-11-16T07:01:00Z")])
    flush(home)
    append(home, [Part(0).native(), Part(1).native(message_created_at="2026-11-16T07:01:00Z")])
    flush(home)
    ends = iter([False, True, True, True])
    monkeypatch.setattr(MaintenanceContext, "out_of_time", property(lambda _: next(ends)))
    compact(home)
    assert len(health.list_settlements(home, DATASET)) == 1
    monkeypatch.setattr(MaintenanceContext, "out_of_time", False)
    compact(home)
    assert set(ids(home)) == {"native-0#0", "native-1#0"}
    assert health.list_settlements(home, DATASET) == []


def test_an_unreadable_settlement_is_reported_once_and_blocks_nothing(home: Home) -> None:
    _settled(home)
    (path,) = health.list_settlements(home, DATASET)
    path.write_bytes(b"not a Parquet file")
    home.keys.unlink()
    append(home, [Part(9).native()])
    assert flush(home).rows.written == 1
    assert len(SmallFiles(home).compact().errors) == 1
    assert due_now(home) == []
    append(home, NATIVE)
    assert flush(home).rows.settled == 6, "the transcript is imported again"


def test_a_native_row_whose_live_row_was_removed_is_added_itself(home: Home) -> None:
    """For instance, a rebuild could not read the file with the live row."""
    _settled(home)
    lake = SmallFiles(home)
    with lake.work() as work, work.lock_table() as table:
        table.replace_files(TableChange("rebuild", lake.files()))
    compact(home)
    assert health.list_settlements(home, DATASET) == []
    flush(home)
    assert set(ids(home)) == NATIVE_IDS


def _without_its_row(home: Home) -> None:
    """Make a pending settlement whose live row is missing, as after a rebuild that lost it."""
    append(home, [Part(0, text="text of the lost row").live()])
    flush(home)
    append(home, [Part(9, session="other").native(cwd="/other")])
    flush(home)
    append(home, [Part(0, text="text of the lost row").native()])
    flush(home)
    lake = SmallFiles(home)
    with lake.work() as work, work.lock_table() as table:
        table.replace_files(TableChange("rebuild", [file for file in lake.files() if file.max_seq == 1]))


def test_rows_returned_to_the_spool_are_committed_once_after_a_kill_at_any_point(home: Home) -> None:
    _without_its_row(home)
    assert not run_in_child(lambda: compact(home, force=True), crash_at="lake.settlements.before-remove")
    flush(home)
    compact(home)
    flush(home)
    assert ids(home) == Counter(["native-0#0", "native-9#0"])


def test_settlements_of_an_interrupted_flush_are_applied_by_a_later_compaction(home: Home) -> None:
    append(home, [Part(0).live()])
    flush(home)
    append(home, [Part(0).native()])
    assert not run_in_child(lambda: (flush(home), None)[1], crash_at="lake.thin.after-write")
    compact(home, deadline=0.0)
    flush(home)
    compact(home)
    assert ids(home) == Counter(["native-0#0"])


@pytest.mark.hazard(85)
def test_a_purged_folder_does_not_exclude_equal_texts_of_another_folder(home: Home) -> None:
    append(home, [Part(3, text="continue").native(), Part(20, session="live").live()])
    flush(home)
    purge(home, "cwd", "/srv/shop")
    append(home, [Part(5, text="continue").native(cwd="/other")])
    flush(home)
    assert set(ids(home)) == {"live-20#0", "native-5#0"}


def test_a_purge_does_not_extend_an_earlier_one(home: Home) -> None:
    append(home, [Part(3, text="continue").native(), Part(20, session="live").live()])
    flush(home)
    purge(home, "cwd", "/srv/shop")
    with closing(sqlite3.connect(home.tombstones, isolation_level=None)) as db:
        db.execute("UPDATE purges SET at = '2026-11-15T07:04:00+00:00'")
    append(home, [Part(5, text="continue").live(cwd="/other")])
    purge(home, "session", "unrelated")
    assert set(ids(home)) == {"live-20#0", "live-5#0"}


@pytest.mark.hazard(85)
def test_a_purge_leaves_none_of_its_returned_rows_in_the_spool(home: Home) -> None:
    _without_its_row(home)
    purge(home, "cwd", "/srv/shop")
    flush(home)
    assert set(ids(home)) == {"native-9#0"}


def test_a_flush_that_skips_deferred_rows_leaves_them_in_the_spool_for_a_while(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Spool(home, NO_TIMER) as spool:
        spool.append(DATASET, LIVE[:2], deferrable=True)
        spool.append(DATASET, NATIVE[5:])
    assert flush(home, skip_deferred=True).rows.written == 1
    assert not health.has_pending_rows(home, [DATASET], skip_deferred=True)
    assert health.has_pending_rows(home, [DATASET])
    later = time.time() + segments.DEFERRAL_SECONDS
    monkeypatch.setattr(time, "time", lambda: later)
    assert health.has_pending_rows(home, [DATASET], skip_deferred=True)
    assert flush(home, skip_deferred=True).rows.written == 2


def test_deferred_rows_match_their_transcript_within_one_flush(home: Home) -> None:
    with Spool(home, NO_TIMER) as spool:
        spool.append(DATASET, LIVE, deferrable=True)
    assert flush(home, skip_deferred=True).rows.written == 0
    append(home, NATIVE)
    assert flush(home, skip_deferred=True).rows.written == 6
    assert flush(home).rows.duplicate == 6
    assert health.list_settlements(home, DATASET) == []


def test_a_working_directory_noted_after_the_first_rows_is_filled_in(home: Home) -> None:
    with Spool(home, NO_TIMER) as spool:
        spool.append(DATASET, [Part(0).live(), Part(1).live(cwd="/known")], deferrable=True)
        spool.append(DATASET, [Part(2, session="session-2").live()], deferrable=True)
    folder = home.root / "clients" / "claude"
    folder.mkdir(parents=True)
    notes = [{"session_id": "session-1", "cwd": cwd, "git_branch": "main"} for cwd in ("/first", "/second")]
    (folder / "session-context.jsonl").write_text("".join(f"{json.dumps(note)}\n" for note in notes) + "not JSON\n")
    flush(home)
    found = {row["part_id"]: (row["cwd"], row["git_branch"]) for row in read_lake(home, DATASET)}
    assert found == {"live-0#0": ("/first", "main"), "live-1#0": ("/known", None), "live-2#0": (None, None)}


steps = st.lists(
    st.one_of(
        st.tuples(st.just("live"), st.integers(0, 7), st.integers(1, 8)),
        st.tuples(st.just("late"), st.integers(0, 7), st.integers(1, 8)),
        st.tuples(st.just("shown late"), st.integers(0, 7), st.integers(1, 8)),
        st.tuples(st.just("native"), st.integers(0, 7), st.integers(1, 8)),
        st.tuples(st.sampled_from(["flush", "compact", "lose index", "again"]), st.just(0), st.just(0)),
    ),
    max_size=12,
)
LONG = [*CONVERSATION, Part(6, "call"), Part(7, text="continue")]


def _recorded(part: Part, how: str) -> dict[str, Any]:
    if how == "shown late":
        return part.shown(late=True)
    return part.native() if how == "native" else part.live(late=how == "late")


@pytest.mark.hazard(68)
@pytest.mark.hazard(83)
@pytest.mark.hazard(101)
@settings(max_examples=25 * int(os.environ["HYP_SOAK"]) if "HYP_SOAK" in os.environ else 10, deadline=None)
@given(steps)
def test_each_part_is_one_row_in_any_order_of_flushes_and_compactions(
    tmp_path_factory: pytest.TempPathFactory, taken: list[tuple[str, int, int]]
) -> None:
    home = Home(tmp_path_factory.mktemp("settled") / "home")
    sent: list[dict[str, Any]] = []
    known: set[int] = set()
    for what, first, count in taken:
        some = LONG[first : first + count]
        if what in ("live", "late", "native", "shown late"):
            rows = [_recorded(part, what) for part in some]
            sent += rows
            append(home, rows)
            known.update(part.number for part in some)
        elif what == "flush":
            flush(home)
        elif what == "compact" and metadata.find_table(home, DATASET):
            compact(home, force=True)
        elif what == "lose index":
            home.keys.unlink(missing_ok=True)
        elif what == "again" and sent:
            append(home, sent[-5:])
    if not known:
        return
    flush(home)
    seqs = [row[SEQ] for row in read_lake(home, DATASET)]
    assert len(seqs) == len(set(seqs))
    # Finally, the whole transcript is imported.
    append(home, [part.native() for part in LONG])
    flush(home)
    compact(home, force=True)
    assert ids(home) == Counter(f"{part.native_id}#0" for part in LONG)
    assert {row[SEQ] for row in read_lake(home, DATASET)} >= set(seqs), "no row that may have been delivered is missing"
