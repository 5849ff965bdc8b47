"""Manifests follow their format, and nothing else is parsed as one."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.export.sink import StreamCoverage
from hypaware.export.sinks.blob import blob_sink
from hypaware.export.sinks.blob.blob_sink import StoredObject
from tests.support.blob_destination import GATEWAY, INCARNATION, chunk
from tests.support.rows import DATASET

STORED = StoredObject("a/b.parquet", 2, 77, "f" * 64)
NOW = datetime(2026, 11, 15, 7, 15, 8, 256000, UTC)
SAID: dict[str, Any] = {
    "v": 1,
    "gateway": GATEWAY,
    "incarnation": INCARNATION,
    "dataset": DATASET,
    "source": "clau de",
    "after": 4,
    "last": 9,
    "rows": 2,
    "objects": [{"key": "a/b.parquet", "rows": 2, "bytes": 77, "sha256": "f" * 64}],
    "written_at": "2026-11-15T07:15:08.256000Z",
}


def test_a_manifest_is_written_in_its_format() -> None:
    written = blob_sink.format_manifest(blob_sink.make_manifest(chunk(4, 9, source="clau de"), STORED, NOW))

    assert json.loads(written) == SAID
    assert list(json.loads(written)) == list(SAID)


def test_a_manifest_is_parsed_back() -> None:
    parsed = blob_sink.make_manifest(chunk(4, 9), STORED, NOW)

    assert blob_sink.parse_manifest(blob_sink.format_manifest(parsed)) == parsed


@pytest.mark.hazard(89)
@pytest.mark.parametrize(
    "other",
    [
        chunk(4, 9, gateway_id="gw-other"),
        chunk(4, 9, incarnation=f"{INCARNATION[:8]}{'0' * 24}"),
        chunk(4, 9, source="Claude"),
        chunk(4, 10),
        chunk(3, 9),
    ],
)
def test_a_manifest_describes_exactly_one_chunk(other: Any) -> None:
    parsed = blob_sink.make_manifest(chunk(4, 9), STORED, NOW)

    assert parsed.describes(chunk(4, 9))
    assert not parsed.describes(other)


ODD: list[dict[str, Any]] = [
    {"v": 2}, {"v": "1"}, {"after": "4"}, {"after": True}, {"last": 4}, {"last": 1.5}, {"rows": None},
    {"objects": []}, {"objects": {}}, {"objects": [1]}, {"objects": [{"key": "x"}]}, {"source": 1},
]  # fmt: skip


@pytest.mark.hazard(61)
@pytest.mark.parametrize("key", ["/etc/passwd", "../up", "a/../../up", "a//b", "./a", "", "a/"])
def test_a_manifest_with_a_key_outside_the_destination_is_invalid(key: str) -> None:
    assert (
        blob_sink.parse_manifest(json.dumps({**SAID, "objects": [{**SAID["objects"][0], "key": key}]}).encode()) is None
    )


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{", b"[]", b"null", b"7", b'"text"', b"\xff"),
        *(json.dumps({name: value for name, value in SAID.items() if name != left_out}).encode() for left_out in SAID),
        *(json.dumps({**SAID, **odd}).encode() for odd in ODD),
    ],
)
def test_other_files_are_not_parsed_as_manifests(data: bytes) -> None:
    assert blob_sink.parse_manifest(data) is None


def test_unknown_fields_are_ignored() -> None:
    objects = [{**SAID["objects"][0], "extra": 1}]

    assert blob_sink.parse_manifest(json.dumps({**SAID, "more": [], "objects": objects}).encode()) is not None


ranges = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)).map(lambda each: (each[0], sum(each))), max_size=12)


@given(ranges)
def test_coverage_is_the_union_of_the_ranges(found: list[tuple[int, int]]) -> None:
    covered = {sequence for after, last in found for sequence in range(after + 1, last + 1)}

    coverage = StreamCoverage.from_ranges(found)

    missing = {sequence for after, last in coverage.holes for sequence in range(after + 1, last + 1)}
    assert coverage.last == max(covered, default=0)
    assert missing == set(range(1, coverage.last + 1)) - covered
    assert all(after < last for after, last in coverage.holes)


def test_overlapping_ranges_do_not_duplicate_holes() -> None:
    assert StreamCoverage.from_ranges([(10, 20), (0, 5), (12, 30), (40, 50)]) == StreamCoverage(50, ((5, 10), (30, 40)))
    assert StreamCoverage.from_ranges([]) == StreamCoverage(0)
