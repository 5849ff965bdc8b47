"""Numbering rows that another program added without a sequence: the repair of `hyp verify`."""

from __future__ import annotations

from contextlib import closing

import pytest

from hypaware import faults
from hypaware.errors import LakeError
from hypaware.export.status import read_statuses
from hypaware.home import Home
from hypaware.lake import commit, health
from hypaware.maintain import row_numbers
from hypaware.model import datasets
from hypaware.model.datasets import ROW_ID, SEQ, SOURCE
from hypaware.state import flushes
from hypaware.state.home_opener import open_home
from tests.support.delivery_home import DeliveryHome
from tests.support.foreign_rows import add_foreign_rows
from tests.support.light_home import DATASET, append, flush
from tests.support.light_lake import LightLake, read_lake
from tests.support.retention_cases import NOW
from tests.support.rows import rows

MESSAGES = datasets.get(DATASET)


@pytest.fixture
def home_with_foreign_rows(home: Home) -> Home:
    """Six rows in two files, and three copies of them without a sequence."""
    for start in (0, 3):
        append(home, rows(3, start=start))
        flush(home)
    add_foreign_rows(home, 3)
    return home


def number(home: Home) -> int:
    with (
        closing(open_home(home).store) as store,
        closing(LightLake(home)) as lake,
        commit.open_table(home, store, lake, MESSAGES) as target,
    ):
        return row_numbers.number_rows(home, store, lake, target.table, MESSAGES)


def found_rows(home: Home) -> list[dict[str, object]]:
    return sorted(read_lake(home, DATASET), key=lambda row: (row[SEQ] is None, row[SEQ], row["part_id"]))


@pytest.mark.hazard(98)
@pytest.mark.hazard(100)
def test_rows_without_a_sequence_are_numbered_above_all_others(home_with_foreign_rows: Home) -> None:
    home = home_with_foreign_rows
    before = found_rows(home)
    assert [row[SEQ] for row in before] == [1, 2, 3, 4, 5, 6, None, None, None]
    assert number(home) == 3
    after = found_rows(home)
    assert after[:6] == before[:6]
    assert [row[SEQ] for row in after[6:]] == [7, 8, 9]
    assert [row["part_id"] for row in after[6:]] == [row["part_id"] for row in before[6:]]
    assert all(row[ROW_ID] and row[SOURCE] == "claude" for row in after)
    with closing(open_home(home).store) as store, store.reading() as connection:
        assert flushes.load_high_water(connection)[DATASET] == {"claude": 9}, "deliveries find the rows"
    assert number(home) == 0, "a second run has nothing to do"
    append(home, [*rows(1), *rows(1, start=6)])
    assert flush(home).rows.written == 1
    assert found_rows(home)[-1][SEQ] > 9  # type: ignore[operator]


@pytest.mark.hazard(98)
@pytest.mark.parametrize("point", ["after-reserve", "before-commit", "after-commit"])
def test_rows_are_numbered_once_if_the_process_is_killed(
    home_with_foreign_rows: Home, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = home_with_foreign_rows

    def die(reached: str) -> None:
        if reached == f"maintain.number.{point}":
            raise _Killed

    monkeypatch.setattr(faults, "_reach", die)
    with pytest.raises(_Killed):
        number(home)
    monkeypatch.undo()
    append(home, rows(1, start=6))
    flush(home)
    assert number(home) == (0 if point == "after-commit" else 3)
    found = found_rows(home)
    assert len({row["part_id"] for row in found}) == len({row[SEQ] for row in found}) == len(found) == 10
    with closing(open_home(home).store) as store, store.reading() as connection:
        assert flushes.load_high_water(connection)[DATASET] == {"claude": found[-1][SEQ]}
        assert not flushes.unfinished_flushes(connection)


@pytest.mark.hazard(98)
def test_a_rewrite_that_loses_a_row_is_not_committed(
    home_with_foreign_rows: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = home_with_foreign_rows
    before = found_rows(home)
    rewrite = row_numbers._rewrite
    monkeypatch.setattr(row_numbers, "_rewrite", lambda *arguments: rewrite(*arguments)[1:])
    with pytest.raises(LakeError, match="row counts do not match"):
        number(home)
    assert found_rows(home) == before
    with closing(open_home(home).store) as store, store.reading() as connection:
        assert not flushes.unfinished_flushes(connection)


@pytest.mark.hazard(100)
def test_the_status_of_a_stream_counts_rows_without_a_sequence(home_with_foreign_rows: Home) -> None:
    home = home_with_foreign_rows
    assert health.count_unnumbered_rows(home, DATASET) == {"claude": 3}
    deliveries = DeliveryHome(home)
    deliveries.declare(archive=home.root.parent / "archive")
    with deliveries.store() as store:
        (stream,) = read_statuses(home, deliveries.config, store, NOW)
    assert stream.as_json()["rows_without_sequence"] == 3


class _Killed(BaseException):
    """Stands for a kill: no code handles it."""
