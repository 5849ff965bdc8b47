"""The delivery record: ranges in a table property, in any order of arrival."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.export.sink import DestinationDenied, StreamCoverage
from hypaware.export.sinks.iceberg import iceberg_table
from hypaware.export.sinks.iceberg.iceberg_table import DeliveryRecord


def test_adjacent_ranges_are_joined_and_holes_remain() -> None:
    found = DeliveryRecord().with_range(0, 10).with_range(10, 20).with_range(25, 30)
    assert found.text == "0-20,25-30"
    assert found.coverage == StreamCoverage(30, ((20, 25),))
    assert found.with_range(20, 25).text == "0-30"


def test_the_range_below_the_first_one_is_a_hole() -> None:
    assert DeliveryRecord().with_range(5, 10).coverage == StreamCoverage(10, ((0, 5),))
    assert DeliveryRecord().coverage == StreamCoverage(0)


def test_a_range_is_covered_or_overlapped_or_neither() -> None:
    found = DeliveryRecord().with_range(10, 20)
    assert found.covers(10, 20)
    assert found.covers(12, 15)
    assert not found.covers(9, 15)
    assert found.overlaps(9, 11)
    assert found.overlaps(19, 30)
    assert not found.overlaps(0, 10)
    assert not found.overlaps(20, 30)


@pytest.mark.hazard(25)
def test_similar_streams_have_separate_keys() -> None:
    names = ["a b", "a_b", "a.b", "a%20b", "a/b", "x" * 300, "x" * 301, "", "é"]
    keys = {iceberg_table.record_key("gw", "inc", source) for source in names}
    keys |= {
        iceberg_table.record_key("gw.inc", "", "x"),
        iceberg_table.record_key("gw", "inc.", "x"),
        iceberg_table.record_key("gw", "inc", ".x"),
    }
    assert len(keys) == len(names) + 3
    assert all(len(key) < 256 for key in keys), "as long as a name may be in a Hive metastore"


@pytest.mark.parametrize("text", ["all", "1", "5-5", "9-3", "1-2,,3-4", "-5-3", "1-2-3"])
def test_a_damaged_record_is_denied(text: str) -> None:
    with pytest.raises(DestinationDenied, match="not a list of ranges"):
        iceberg_table.parse_record("hyp.delivered.x", text)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=12))
def test_a_record_is_the_set_of_delivered_sequences(pairs: list[tuple[int, int]]) -> None:
    ranges = [(after, after + width) for after, width in pairs]
    found = DeliveryRecord()
    for after, last in ranges:
        found = found.with_range(after, last)
    delivered = {seq for after, last in ranges for seq in range(after + 1, last + 1)}
    if ranges:
        assert iceberg_table.parse_record("key", found.text) == found
    result = found.coverage
    assert result.last == max(delivered, default=0)
    missing = {seq for after, last in result.holes for seq in range(after + 1, last + 1)}
    assert delivered | missing == set(range(1, result.last + 1))
    assert not delivered & missing
    for after in range(0, 80, 7):
        inside = set(range(after + 1, after + 6))
        assert found.covers(after, after + 5) is (inside <= delivered)
        assert found.overlaps(after, after + 5) is bool(inside & delivered)
