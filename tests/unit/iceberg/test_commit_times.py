"""Commit times in the future: lowered to the present, at any kill, without a change of rows."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from hypaware import faults
from hypaware.home import Home
from hypaware.iceberg import commit_times, metadata
from hypaware.iceberg.metadata import TableMetadata
from tests.support.commit_clock import date_last_commit
from tests.support.light_home import DATASET, append, flush
from tests.support.light_lake import read_lake
from tests.support.rows import rows


@pytest.fixture
def home_ahead(home: Home) -> Home:
    """Two commits, the second under a clock that was five hours ahead."""
    for start in (0, 2):
        append(home, rows(2, start=start))
        flush(home)
    date_last_commit(home, DATASET, datetime.now(UTC) + timedelta(hours=5))
    return home


def table(home: Home) -> TableMetadata:
    entry = metadata.find_table(home, DATASET)
    assert entry
    return metadata.read_metadata(entry.metadata)


def lower(home: Home) -> bool:
    return commit_times.lower_future_times(home, DATASET, time.time())


@pytest.mark.hazard(103)
def test_times_in_the_future_are_lowered_to_the_present(home_ahead: Home) -> None:
    before, found = table(home_ahead), read_lake(home_ahead, DATASET)
    assert before.snapshots[-1].at > time.time()
    assert lower(home_ahead)
    after = table(home_ahead)
    assert [snapshot.id for snapshot in after.snapshots] == [snapshot.id for snapshot in before.snapshots]
    times = [snapshot.at for snapshot in after.snapshots]
    assert times == sorted(times)
    assert times[0] == before.snapshots[0].at
    assert times[-1] <= time.time()
    assert after.log[-1] == before.path, "the old metadata is kept for a rollback"
    assert read_lake(home_ahead, DATASET) == found
    assert not lower(home_ahead), "a second time there is nothing to do"


@pytest.mark.hazard(103)
@pytest.mark.parametrize("point", ["before-update", "after-update"])
def test_a_kill_leaves_the_old_or_the_new_times(home_ahead: Home, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(reached: str) -> None:
        if reached == f"iceberg.times.{point}":
            raise _Killed

    found = read_lake(home_ahead, DATASET)
    monkeypatch.setattr(faults, "_reach", die)
    with pytest.raises(_Killed):
        lower(home_ahead)
    monkeypatch.undo()
    assert lower(home_ahead) == (point == "before-update")
    assert table(home_ahead).snapshots[-1].at <= time.time()
    assert read_lake(home_ahead, DATASET) == found
    append(home_ahead, rows(1, start=4))
    assert flush(home_ahead).rows.written == 1


def test_torn_metadata_and_missing_tables_are_left_alone(home: Home) -> None:
    assert not lower(home)
    append(home, rows(1))
    flush(home)
    assert not lower(home)
    table(home).path.write_bytes(b"{")
    assert not lower(home)


class _Killed(BaseException):
    """Stands for a kill: no code handles it."""
