"""A manifest is what the format says, and nothing else is taken for one."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.export.sink import Delivered
from hypaware.export.sinks.blob import manifest
from hypaware.export.sinks.blob.coverage import delivered_by
from hypaware.export.sinks.blob.manifest import StoredObject
from tests.blob_destination import GATEWAY, INCARNATION, chunk
from tests.rows import DATASET

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


def test_it_is_written_as_the_format_says() -> None:
    written = manifest.write(manifest.of_chunk(chunk(4, 9, source="clau de"), STORED, NOW))

    assert json.loads(written) == SAID
    assert list(json.loads(written)) == list(SAID)


def test_it_is_read_back() -> None:
    said = manifest.of_chunk(chunk(4, 9), STORED, NOW)

    assert manifest.read(manifest.write(said)) == said


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
def test_it_is_of_one_chunk_only(other: Any) -> None:
    said = manifest.of_chunk(chunk(4, 9), STORED, NOW)

    assert said.describes(chunk(4, 9))
    assert not said.describes(other)


ODD: list[dict[str, Any]] = [
    {"v": 2}, {"v": "1"}, {"after": "4"}, {"after": True}, {"last": 4}, {"last": 1.5}, {"rows": None},
    {"objects": []}, {"objects": {}}, {"objects": [1]}, {"objects": [{"key": "x"}]}, {"source": 1},
]  # fmt: skip


@pytest.mark.hazard(61)
@pytest.mark.parametrize("key", ["/etc/passwd", "../up", "a/../../up", "a//b", "./a", "", "a/"])
def test_a_manifest_that_names_something_outside_is_none(key: str) -> None:
    assert manifest.read(json.dumps({**SAID, "objects": [{**SAID["objects"][0], "key": key}]}).encode()) is None


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{", b"[]", b"null", b"7", b'"text"', b"\xff"),
        *(json.dumps({name: value for name, value in SAID.items() if name != left_out}).encode() for left_out in SAID),
        *(json.dumps({**SAID, **odd}).encode() for odd in ODD),
    ],
)
def test_nothing_else_is_taken_for_one(data: bytes) -> None:
    assert manifest.read(data) is None


def test_what_a_later_program_adds_is_ignored() -> None:
    objects = [{**SAID["objects"][0], "extra": 1}]

    assert manifest.read(json.dumps({**SAID, "more": [], "objects": objects}).encode()) is not None


ranges = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)).map(lambda each: (each[0], sum(each))), max_size=12)


@given(ranges)
def test_what_was_delivered_is_what_the_ranges_cover(found: list[tuple[int, int]]) -> None:
    covered = {sequence for after, last in found for sequence in range(after + 1, last + 1)}

    told = delivered_by(found)

    missing = {sequence for after, last in told.holes for sequence in range(after + 1, last + 1)}
    assert told.last == max(covered, default=0)
    assert missing == set(range(1, told.last + 1)) - covered
    assert all(after < last for after, last in told.holes)


def test_holes_lie_between_ranges_and_are_not_doubled_by_overlaps() -> None:
    assert delivered_by([(10, 20), (0, 5), (12, 30), (40, 50)]) == Delivered(50, ((5, 10), (30, 40)))
    assert delivered_by([]) == Delivered(0)
