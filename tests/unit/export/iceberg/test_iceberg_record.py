"""The record of what was delivered: ranges in a table's property, whatever order they came in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.export.sink import Delivered, Denied
from hypaware.export.sinks.iceberg import record
from hypaware.export.sinks.iceberg.record import Record


def test_neighbours_are_joined_and_holes_stay() -> None:
    found = Record().with_range(0, 10).with_range(10, 20).with_range(25, 30)
    assert found.text == "0-20,25-30"
    assert found.coverage == Delivered(30, ((20, 25),))
    assert found.with_range(20, 25).text == "0-30"


def test_what_lies_below_the_first_range_is_missing_too() -> None:
    assert Record().with_range(5, 10).coverage == Delivered(10, ((0, 5),))
    assert Record().coverage == Delivered(0)


def test_covered_touched_or_neither() -> None:
    found = Record().with_range(10, 20)
    assert found.covers(10, 20)
    assert found.covers(12, 15)
    assert not found.covers(9, 15)
    assert found.overlaps(9, 11)
    assert found.overlaps(19, 30)
    assert not found.overlaps(0, 10)
    assert not found.overlaps(20, 30)


@pytest.mark.hazard(25)
def test_streams_that_look_alike_have_keys_of_their_own() -> None:
    names = ["a b", "a_b", "a.b", "a%20b", "a/b", "x" * 300, "x" * 301, "", "é"]
    keys = {record.key_of("gw", "inc", source) for source in names}
    keys |= {record.key_of("gw.inc", "", "x"), record.key_of("gw", "inc.", "x"), record.key_of("gw", "inc", ".x")}
    assert len(keys) == len(names) + 3
    assert all(len(key) < 256 for key in keys), "as long as a name may be in a Hive metastore"


@pytest.mark.parametrize("text", ["all", "1", "5-5", "9-3", "1-2,,3-4", "-5-3", "1-2-3"])
def test_a_spoiled_record_is_no_record(text: str) -> None:
    with pytest.raises(Denied, match="not a list of ranges"):
        record.parse("hyp.delivered.x", text)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=12))
def test_a_record_is_the_set_of_sequences_that_came(pairs: list[tuple[int, int]]) -> None:
    ranges = [(after, after + width) for after, width in pairs]
    found = Record()
    for after, last in ranges:
        found = found.with_range(after, last)
    came = {seq for after, last in ranges for seq in range(after + 1, last + 1)}
    if ranges:
        assert record.parse("key", found.text) == found
    told = found.coverage
    assert told.last == max(came, default=0)
    missing = {seq for after, last in told.holes for seq in range(after + 1, last + 1)}
    assert came | missing == set(range(1, told.last + 1))
    assert not came & missing
    for after in range(0, 80, 7):
        inside = set(range(after + 1, after + 6))
        assert found.covers(after, after + 5) is (inside <= came)
        assert found.overlaps(after, after + 5) is bool(inside & came)
