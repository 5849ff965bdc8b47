"""Live rows and their transcript in a lake: one part, one row, one sequence, whichever came first."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypaware.crash_points import all_points
from hypaware.home import Home
from hypaware.lake import keys, metadata, settlement_files
from hypaware.lake.committer import Change
from hypaware.lake.keys import KeyIndex
from hypaware.lake.scan import FileScan, row_ids_of_file
from hypaware.maintain import compact_plan
from hypaware.maintain.work import Work
from hypaware.model.coerce import coerce_row
from hypaware.model.datasets import BATCH_ID, ROW_ID, SEQ
from hypaware.spool import segments
from hypaware.spool.writer import Spool
from tests.light_lake import read_lake
from tests.light_life import DATASET, NO_TIMER, append, flush
from tests.light_purge import holders, purge
from tests.live_rows import Part
from tests.lives import live
from tests.rows import MESSAGES
from tests.unit.maintain.compacting import SmallFiles, due_now

CONVERSATION = [
    Part(0),
    Part(1, "answer"),
    Part(2, "call"),
    Part(3, words="continue"),
    Part(4, "answer", "done"),
    Part(5, words="continue"),
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
def test_a_transcript_settles_the_rows_that_the_gateway_recorded_before_it(home: Home) -> None:
    append(home, LIVE)
    flush(home)
    before = {row[SEQ]: row for row in read_lake(home, DATASET)}
    append(home, NATIVE)
    report = flush(home)
    assert (report.rows_written, report.rows_settled, report.rows_duplicate) == (0, 6, 0)
    assert due_now(home) == [DATASET]
    compact(home)
    assert settlement_files.files(home, DATASET) == []
    after = {row[SEQ]: row for row in read_lake(home, DATASET)}
    assert after.keys() == before.keys(), "a row keeps its sequence: who has had it is not sent it again"
    assert {row["part_id"] for row in after.values()} == NATIVE_IDS
    for seq, row in after.items():
        assert (row[ROW_ID], row[BATCH_ID]) == (before[seq][ROW_ID], before[seq][BATCH_ID])
        assert gateway_of(row) == {"source": "live", "exchange_id": "e1", "previous_part_id": before[seq]["part_id"]}
        assert (row["cwd"], row["git_branch"]) == ("/srv/shop", "main")
        assert json.loads(row["attributes"])["claude"] == {"version": "2"}
    assert due_now(home) == []
    (file,) = metadata.live_files(SmallFiles(home).known)
    assert row_ids_of_file(FileScan(DATASET, file.path)).wrong == 0, "an audit knows that they were settled"


@pytest.mark.hazard(68)
def test_what_the_gateway_brings_of_an_imported_conversation_is_left_out(home: Home) -> None:
    append(home, NATIVE)
    flush(home)
    before = read_lake(home, DATASET)
    append(home, LIVE)
    report = flush(home)
    assert (report.rows_written, report.rows_settled, report.rows_duplicate) == (0, 0, 6)
    assert read_lake(home, DATASET) == before


@pytest.mark.parametrize("both", [[*LIVE, *NATIVE], [*NATIVE, *LIVE]])
def test_in_one_flush_the_native_rows_go_on(home: Home, both: list[dict[str, Any]]) -> None:
    append(home, both)
    report = flush(home)
    assert (report.rows_written, report.rows_settled, report.rows_duplicate) == (6, 0, 6)
    assert set(ids(home)) == NATIVE_IDS
    assert settlement_files.files(home, DATASET) == []


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
def test_neither_record_comes_in_again(home: Home, way: Callable[[Home], None], lost: bool) -> None:
    """A client shows its history at every call, a transcript is imported once more, the index is made anew."""
    way(home)
    if lost:
        home.keys.unlink()
    append(home, [*LIVE, *NATIVE])
    report = flush(home)
    assert (report.rows_written, report.rows_settled, report.rows_duplicate) == (0, 0, 12)
    compact(home, force=True)
    assert set(ids(home)) == NATIVE_IDS
    assert max(ids(home).values()) == 1


def test_a_third_record_under_another_id_is_a_row_of_its_own(home: Home) -> None:
    """Two that met are done: the same words once more are said once more."""
    _carried_out(home)
    append(home, [Part(7, words="continue").live(), Part(7, words="continue").native()])
    assert flush(home).rows_written == 1
    assert len(ids(home)) == 7


def test_rows_of_other_gateways_are_never_settled_here(home: Home) -> None:
    """What a server receives was settled where it came from."""
    for some in (LIVE, NATIVE):
        with Spool(home, NO_TIMER) as spool:
            spool.append_coerced(DATASET, [coerce_row(MESSAGES, row, "another-home") for row in some])
        assert flush(home).rows_written == 6
    with closing(KeyIndex(home.keys)) as index:
        assert not index.matches(DATASET)


def test_an_import_without_live_rows_keeps_nothing_to_meet_by(home: Home) -> None:
    append(home, NATIVE)
    flush(home)
    with closing(KeyIndex(home.keys)) as index:
        assert not index.matches(DATASET)


@pytest.mark.hazard(83)
def test_a_history_that_a_resumed_session_shows_meets_what_was_imported_days_before(home: Home) -> None:
    append(home, NATIVE)
    flush(home)
    append(home, [part.live(late=True, raw_frame=None) for part in CONVERSATION])
    assert flush(home).rows_written == 0


def test_a_row_stays_in_its_day_when_its_native_record_has_another(home: Home) -> None:
    append(home, [Part(0).live(late=True)])
    flush(home)
    (before,) = read_lake(home, DATASET)
    append(home, [Part(0).native()])
    assert flush(home).rows_settled == 1
    compact(home)
    (after,) = read_lake(home, DATASET)
    assert after["part_id"] == "native-0#0"
    assert (after["date"], after["message_created_at"]) == (before["date"], before["message_created_at"])
    assert gateway_of(after)["native_created_at"].startswith("2026-11-15")


POINTS = [
    point.name
    for point in all_points()
    if point.name.startswith(("lake.thin", "lake.commit", "lake.record", "lake.keys"))
    or point.name in ("lake.build.after-write", "lake.remove.before-unlink", "state.commit.after-commit")
]
COMPACTION_POINTS = [
    point.name
    for point in all_points()
    if point.name.startswith(("maintain.compact", "lake.settlements")) and "after-write" not in point.name
]


@pytest.mark.hazard(4)
@pytest.mark.parametrize("point", POINTS)
def test_killed_while_it_settles_a_flush_leaves_each_part_once(home: Home, point: str) -> None:
    append(home, LIVE[:4])
    flush(home)
    append(home, [*NATIVE, Part(9).native()])
    live(lambda: (flush(home), None)[1], crash_at=point)
    flush(home)
    compact(home, force=True)
    assert set(ids(home)) == {*NATIVE_IDS, "native-9#0"}
    assert max(ids(home).values()) == 1
    append(home, [*LIVE, *NATIVE])
    assert flush(home).rows_written == 0


@pytest.mark.hazard(38)
@pytest.mark.parametrize("point", COMPACTION_POINTS)
def test_killed_while_it_carries_settlements_out_a_compaction_is_done_again(home: Home, point: str) -> None:
    _settled(home)
    assert not live(lambda: compact(home), crash_at=point)
    compact(home, force=True)
    assert set(ids(home)) == NATIVE_IDS
    assert max(ids(home).values()) == 1
    assert settlement_files.files(home, DATASET) == []


@pytest.mark.hazard(85)
def test_a_purged_conversation_does_not_come_back_under_its_other_ids(home: Home) -> None:
    """By its folder, which only the transcript told: the rows are settled first, so that they are found."""
    _settled(home)
    append(home, [Part(20).live(cwd="/srv/other")])
    flush(home)
    report = purge(home, "cwd", "/srv/shop")
    assert report["remaining"] == []
    assert set(ids(home)) == {"live-20#0"}
    history = [part.live(late=True, raw_frame=None) for part in CONVERSATION]
    append(home, [*LIVE, *NATIVE, *history])
    assert flush(home).rows_written == 0
    assert holders(home, "words of 0", "native-0") == set()


def test_a_settlement_that_the_index_has_not_heard_of_is_told_to_it_before_it_goes(home: Home) -> None:
    append(home, LIVE[:1])
    flush(home)
    append(home, NATIVE[:1])
    assert not live(lambda: (flush(home), None)[1], crash_at="lake.keys.before-commit")
    compact(home)
    append(home, NATIVE[:1])
    assert flush(home).rows_written == 0
    assert ids(home) == Counter({"native-0#0": 1})


def test_a_row_that_was_settled_is_not_settled_again_and_the_other_row_comes_in(home: Home) -> None:
    """An older copy of the index, under which the live row is still free."""
    append(home, [Part(3, words="continue").live()])
    flush(home)
    with closing(sqlite3.connect(home.keys)) as index:
        older = index.serialize()
    append(home, [Part(3, words="continue").native()])
    flush(home)
    compact(home)
    keys.remove(home.keys)
    home.keys.write_bytes(older)
    append(home, [Part(5, words="continue").native()])
    assert flush(home).rows_settled == 1
    compact(home)
    flush(home)
    assert set(ids(home)) == {"native-3#0", "native-5#0"}


@pytest.mark.hazard(85)
def test_a_transcript_does_not_bring_back_what_was_purged_before_it_was_read(home: Home) -> None:
    append(home, [part.live(cwd="/srv/shop") for part in CONVERSATION])
    flush(home)
    assert purge(home, "cwd", "/srv/shop")["remaining"] == []
    append(home, NATIVE)
    report = flush(home)
    assert (report.rows_written, report.rows_purged) == (0, 6)
    later = Part(5, words="continue").native(message_id="later", message_created_at="2036-01-01T00:00:00Z")
    append(home, [later])
    assert flush(home).rows_written == 1, "what is said after the purge is said anew"


def test_settlements_over_two_days_are_carried_out_a_lot_at_a_time(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that has no more time must leave less to the next one."""
    monkeypatch.setattr(compact_plan, "_LOT_TASKS", 1)
    append(home, [Part(0).live(), Part(1).live(message_created_at="2026-11-16T07:01:00Z")])
    flush(home)
    append(home, [Part(0).native(), Part(1).native(message_created_at="2026-11-16T07:01:00Z")])
    flush(home)
    ends = iter([False, True, True, True])
    monkeypatch.setattr(Work, "out_of_time", property(lambda _: next(ends)))
    compact(home)
    assert len(settlement_files.files(home, DATASET)) == 1
    monkeypatch.setattr(Work, "out_of_time", False)
    compact(home)
    assert set(ids(home)) == {"native-0#0", "native-1#0"}
    assert settlement_files.files(home, DATASET) == []


def test_a_settlement_that_cannot_be_read_is_told_once_and_stops_nobody(home: Home) -> None:
    _settled(home)
    (path,) = settlement_files.files(home, DATASET)
    path.write_bytes(b"not a Parquet file")
    home.keys.unlink()
    append(home, [Part(9).native()])
    assert flush(home).rows_written == 1
    assert len(SmallFiles(home).compact().errors) == 1
    assert due_now(home) == []
    append(home, NATIVE)
    assert flush(home).rows_settled == 6, "the transcript tells it again"


def test_a_native_row_whose_row_is_gone_comes_in_itself(home: Home) -> None:
    """A rebuild could not read the file that held it, say."""
    _settled(home)
    lake = SmallFiles(home)
    with lake.work() as work:
        work.commit(Change("rebuild", lake.files()))
    compact(home)
    assert settlement_files.files(home, DATASET) == []
    flush(home)
    assert set(ids(home)) == NATIVE_IDS


def _without_its_row(home: Home) -> None:
    """A settlement waits, and the file of the row that it means is gone, as after a rebuild that lost it."""
    append(home, [Part(0, words="words of the lost").live()])
    flush(home)
    append(home, [Part(9, session="other").native(cwd="/other")])
    flush(home)
    append(home, [Part(0, words="words of the lost").native()])
    flush(home)
    lake = SmallFiles(home)
    with lake.work() as work:
        work.commit(Change("rebuild", [file for file in lake.files() if file.max_seq == 1]))


def test_what_is_given_back_comes_in_once_wherever_it_was_killed(home: Home) -> None:
    _without_its_row(home)
    assert not live(lambda: compact(home, force=True), crash_at="lake.settlements.before-remove")
    flush(home)
    compact(home)
    flush(home)
    assert ids(home) == Counter(["native-0#0", "native-9#0"])


def test_what_a_flush_left_unfinished_settles_after_a_compaction_that_had_no_time(home: Home) -> None:
    append(home, [Part(0).live()])
    flush(home)
    append(home, [Part(0).native()])
    assert not live(lambda: (flush(home), None)[1], crash_at="lake.thin.after-write")
    compact(home, until=0.0)
    flush(home)
    compact(home)
    assert ids(home) == Counter(["native-0#0"])


@pytest.mark.hazard(85)
def test_words_of_a_purged_folder_do_not_keep_out_what_was_said_in_another(home: Home) -> None:
    append(home, [Part(3, words="continue").native(), Part(20, session="live").live()])
    flush(home)
    purge(home, "cwd", "/srv/shop")
    append(home, [Part(5, words="continue").native(cwd="/other")])
    flush(home)
    assert set(ids(home)) == {"live-20#0", "native-5#0"}


def test_a_purge_does_not_make_an_earlier_one_wider(home: Home) -> None:
    append(home, [Part(3, words="continue").native(), Part(20, session="live").live()])
    flush(home)
    purge(home, "cwd", "/srv/shop")
    with closing(sqlite3.connect(home.tombstones, isolation_level=None)) as stones:
        stones.execute("UPDATE purges SET at = '2026-11-15T07:04:00+00:00'")
    append(home, [Part(5, words="continue").live(cwd="/other")])
    purge(home, "session", "unrelated")
    assert set(ids(home)) == {"live-20#0", "live-5#0"}


@pytest.mark.hazard(85)
def test_a_purge_leaves_nothing_in_the_spool_that_it_has_given_back(home: Home) -> None:
    _without_its_row(home)
    purge(home, "cwd", "/srv/shop")
    flush(home)
    assert set(ids(home)) == {"native-9#0"}


def test_rows_that_may_wait_are_left_to_a_patient_flush_for_a_while(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Spool(home, NO_TIMER) as spool:
        spool.append(DATASET, LIVE[:2], waits=True)
        spool.append(DATASET, NATIVE[5:])
    from hypaware.lake import pending

    assert flush(home, patient=True).rows_written == 1
    assert not pending.waits(home, [DATASET], patient=True)
    assert pending.waits(home, [DATASET])
    monkeypatch.setattr(segments, "PATIENCE_SECONDS", 0.0)
    assert pending.waits(home, [DATASET], patient=True)
    assert flush(home, patient=True).rows_written == 2


def test_rows_that_may_wait_meet_their_transcript_in_the_spool(home: Home) -> None:
    with Spool(home, NO_TIMER) as spool:
        spool.append(DATASET, LIVE, waits=True)
    assert flush(home, patient=True).rows_written == 0
    append(home, NATIVE)
    assert flush(home, patient=True).rows_written == 6
    assert flush(home).rows_duplicate == 6
    assert settlement_files.files(home, DATASET) == []


def test_where_a_session_is_at_work_is_filled_in_if_it_was_told_after_its_first_rows(home: Home) -> None:
    with Spool(home, NO_TIMER) as spool:
        spool.append(DATASET, [Part(0).live(), Part(1).live(cwd="/known")], waits=True)
        spool.append(DATASET, [Part(2, session="session-2").live()], waits=True)
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
        st.tuples(st.just("native"), st.integers(0, 7), st.integers(1, 8)),
        st.tuples(st.sampled_from(["flush", "compact", "lose index", "again"]), st.just(0), st.just(0)),
    ),
    max_size=12,
)
LONG = [*CONVERSATION, Part(6, "call"), Part(7, words="continue")]


@pytest.mark.hazard(68)
@pytest.mark.hazard(83)
@settings(max_examples=25, deadline=None)
@given(steps)
def test_whatever_comes_when_each_part_is_one_row(
    tmp_path_factory: pytest.TempPathFactory, taken: list[tuple[str, int, int]]
) -> None:
    home = Home(tmp_path_factory.mktemp("settled") / "home")
    sent: list[dict[str, Any]] = []
    known: set[int] = set()
    for what, first, count in taken:
        some = LONG[first : first + count]
        if what in ("live", "late", "native"):
            rows = [part.native() if what == "native" else part.live(late=what == "late") for part in some]
            sent += rows
            append(home, rows)
            known.update(part.number for part in some)
        elif what == "flush":
            flush(home)
        elif what == "compact" and metadata.entry(home, DATASET):
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
    # In the end all of the transcript is imported.
    append(home, [part.native() for part in LONG])
    flush(home)
    compact(home, force=True)
    assert ids(home) == Counter(f"{part.native_id}#0" for part in LONG)
    assert {row[SEQ] for row in read_lake(home, DATASET)} >= set(seqs), "no row that somebody may have is gone"
