"""SIGKILL at every crash point of a flush, over a lightweight lake. tests/acceptance does the same with Spark."""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from hypaware.config import FlushConfig
from hypaware.faults import list_crash_points
from hypaware.home import Home
from hypaware.model.datasets import SEQ
from hypaware.spool import segments
from hypaware.spool.writer import Spool
from hypaware.state import flushes
from hypaware.state.home_opener import open_home
from hypaware.testing.fault_injection import run_in_child
from tests.support.light_home import DATASET, NO_TIMER, append, flush
from tests.support.light_lake import read_lake
from tests.support.prepared_home import PreparedHome
from tests.support.rows import rows as message_rows

FLUSH_POINTS = [
    point.name
    for point in list_crash_points()
    if point.package in ("state", "lake", "iceberg")
    and not point.name.startswith(("lake.intake", "lake.settlements", "lake.tombstones", "iceberg.relocate"))
    # Need a clock that was ahead, a segment that failed before, or a home that was rolled back.
    and not point.name.startswith(("iceberg.times", "lake.poison"))
]
APPEND_POINTS = [
    point.name for point in list_crash_points() if point.name.startswith(("spool.create", "spool.append", "spool.seal"))
]
ONLY_AFTER_POWER_CUT = {"iceberg.roll-back.before-update", "iceberg.roll-back.after-update"}
# Points that one flush passes several times; a soak test kills at each of them more often.
_AGAIN = ("state.", "iceberg.fsync.", "lake.commit.")
KILLS = [
    (point, times)
    for point in sorted(set(FLUSH_POINTS) - ONLY_AFTER_POWER_CUT)
    for times in ((1, 2, 3) if point.startswith(_AGAIN) or "HYP_SOAK" in os.environ else (1,))
]


def spoil(home: Home) -> None:
    """Write an invalid line to a separate segment."""
    folder = segments.spool_folder(home, DATASET)
    (folder.sealed / segments.sealed_file_name(segments.new_segment_name(), 1)).write_bytes(
        b'{"n":0,"v":1,"row":{"role":1}}\n'
    )


def rejected_lines(home: Home) -> list[dict[str, object]]:
    return [
        json.loads(line)
        for path in segments.spool_folder(home, DATASET).rejected.glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]


def check_exactly_once(home: Home, acknowledged: list[str]) -> None:
    rows = read_lake(home, DATASET)
    assert Counter(row["part_id"] for row in rows) == Counter(set(acknowledged))
    assert len({row[SEQ] for row in rows}) == len(rows)
    with closing(open_home(home).store) as store, store.reading() as connection:
        assert flushes.unfinished_flushes(connection) == []
        high_water = flushes.load_high_water(connection)[DATASET]
        assert high_water == {"claude": max(row[SEQ] for row in rows)}
        assert flushes.next_sequence(connection) > max(row[SEQ] for row in rows)
    assert segments.list_sealed_segments(segments.spool_folder(home, DATASET)) == []


OLD, NEW = message_rows(30), message_rows(40, start=25)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> PreparedHome:
    """Make a home with rows in the lake and rows in the spool, some of them duplicates."""

    def make(home: Home) -> None:
        append(home, OLD)
        flush(home)
        append(home, NEW)
        spoil(home)

    return PreparedHome(tmp_path_factory.mktemp("waiting"), make)


@pytest.mark.hazard(4)
@pytest.mark.hazard(3)
@pytest.mark.parametrize(("point", "times"), KILLS)
def test_a_flush_killed_at_any_point_leaves_every_row_once(kept: PreparedHome, point: str, times: int) -> None:
    """Without recovery, rows would be missing or be added again under new sequences."""
    home = kept.restored()
    lived = run_in_child(lambda: (flush(home, FlushConfig(max_rows=20)), None)[1], crash_at=f"{point}:{times}")
    assert not lived or times > 1, "the crash point was not reached"
    flush(home)
    check_exactly_once(home, [f"{row['message_id']}#0" for row in [*OLD, *NEW]])
    assert len(rejected_lines(home)) == 1
    append(home, NEW)
    assert flush(home).rows.written == 0, "the key index has every committed row"


@pytest.mark.hazard(6)
@pytest.mark.parametrize("point", APPEND_POINTS)
def test_a_producer_killed_at_any_point_loses_no_acknowledged_rows(home: Home, point: str, tmp_path: Path) -> None:
    acknowledged = tmp_path / "acknowledged"
    batches = [message_rows(5, start=start) for start in (0, 5, 10)]

    def produce() -> None:
        with open(acknowledged, "a") as log, Spool(home, NO_TIMER) as spool:
            for batch in batches:
                spool.append(DATASET, batch)
                log.writelines(f"{row['message_id']}#0\n" for row in batch)
                log.flush()

    open_home(home).store.close()
    assert not run_in_child(produce, crash_at=point)
    flush(home)
    in_lake = {row["part_id"] for row in read_lake(home, DATASET)}
    confirmed = set(acknowledged.read_text().splitlines())
    sent = {f"{row['message_id']}#0" for batch in batches for row in batch}
    assert confirmed <= in_lake <= sent


@pytest.mark.hazard(8)
@pytest.mark.parametrize("point", ["spool.repair.before-rename", "spool.repair.after-rename"])
def test_a_repair_killed_at_any_point_is_completed_by_the_next_one(home: Home, point: str) -> None:
    rows = message_rows(7)
    run_in_child(lambda: append(home, rows, seal=False))
    assert not run_in_child(lambda: (flush(home), None)[1], crash_at=point)
    flush(home)
    check_exactly_once(home, [f"{row['message_id']}#0" for row in rows])


@pytest.mark.hazard(4)
def test_a_flush_killed_repeatedly_still_commits_every_row_once(home: Home) -> None:
    """Recovery can be killed too, and so can the recovery of the recovery."""
    rows = message_rows(40)
    append(home, rows)
    spoil(home)
    for times in range(1, 12):
        for point in ("state.commit.after-commit", "lake.commit.after-commit", "iceberg.fsync.before-fsync"):
            run_in_child(lambda: (flush(home, FlushConfig(max_rows=15)), None)[1], crash_at=f"{point}:{1 + times % 3}")
    flush(home)
    check_exactly_once(home, [f"{row['message_id']}#0" for row in rows])


@pytest.mark.hazard(1)
@pytest.mark.hazard(83)
def test_a_row_repeated_on_another_day_from_another_source_is_a_duplicate(home: Home) -> None:
    rows = message_rows(10)
    append(home, rows)
    flush(home)
    later = [{**row, "client_name": "codex", "message_created_at": "2027-01-01T00:00:00Z"} for row in rows]
    append(home, later)
    report = flush(home)
    assert (report.rows.written, report.rows.duplicate) == (0, 10)


@pytest.mark.hazard(16)
def test_rows_become_visible_in_the_order_of_their_sequences(home: Home) -> None:
    """After a reader has seen sequence w, no row with a lower sequence appears."""
    seen = 0
    for round_ in range(4):
        append(home, message_rows(10, start=10 * round_))
        flush(home)
        new = [row[SEQ] for row in read_lake(home, DATASET) if row[SEQ] > seen]
        assert len(new) == 10
        assert sorted(new)[0] > seen
        seen = max(new)
