"""Chunks hold every row once, contiguously, in order, within the limits, never across a fork."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.export.rows import cut_chunks, halve_chunk, make_chunk, missing_chunks
from hypaware.export.sink import ChunkLimits, LinesPayload, StreamCoverage
from hypaware.home.identity import Identity
from hypaware.state.streams import PlannedChunk, StreamKey

KEY = StreamKey("team", "ai_gateway_messages", "claude")


def _identity(*forks: int) -> Identity:
    parents = tuple(f"life-{place}" for place in range(len(forks)))
    return Identity("gw-1", "life-now", parents, "machine", "/home", 1, forks)


def _cut(
    seqs: list[int], sizes: list[int], after: int, last: int, limits: ChunkLimits, *forks: int
) -> list[PlannedChunk]:
    payload = LinesPayload([b"x" * size for size in sizes])
    return cut_chunks(KEY, _identity(*forks), after, last, seqs, payload, limits)


@st.composite
def _pages(draw: st.DrawFn) -> tuple[list[int], list[int], int, int, list[int]]:
    after = draw(st.integers(0, 50))
    gaps = draw(st.lists(st.integers(1, 5), max_size=40))
    seqs = [after + sum(gaps[: place + 1]) for place in range(len(gaps))]
    last = (seqs[-1] if seqs else after) + draw(st.integers(0, 9))
    sizes = draw(st.lists(st.integers(1, 30), min_size=len(seqs), max_size=len(seqs)))
    forks = sorted(draw(st.lists(st.integers(0, 120), max_size=3)))
    return seqs, sizes, after, last, forks


@given(_pages(), st.integers(1, 7), st.integers(1, 60))
def test_chunks_hold_every_row_once_in_order_and_within_the_limits(
    page: tuple[list[int], list[int], int, int, list[int]], rows: int, size: int
) -> None:
    seqs, sizes, after, last, forks = page
    chunks = _cut(seqs, sizes, after, last, ChunkLimits(rows, size), *forks)
    held = [[seq for seq in seqs if chunk.after < seq <= chunk.last] for chunk in chunks]
    assert [seq for part in held for seq in part] == seqs
    weight = dict(zip(seqs, sizes, strict=True))
    epochs = {epoch.incarnation: epoch for epoch in _identity(*forks).incarnation_ranges()}
    reached = after
    for chunk, part in zip(chunks, held, strict=True):
        assert chunk.rows == len(part) >= 1
        assert len(part) <= rows
        assert len(part) == 1 or sum(weight[seq] for seq in part) <= size
        epoch = epochs[chunk.incarnation]
        assert epoch.after <= chunk.after
        assert epoch.through is None or chunk.last <= epoch.through
        assert reached <= chunk.after <= chunk.last
        assert chunk.after == reached or chunk.after in forks
        reached = chunk.last
    assert not chunks or reached <= last


def test_a_chunk_is_filled_up_to_the_limits() -> None:
    """Another border would give other ids to ranges that may have arrived."""
    by_bytes = _cut([1, 2, 3, 4, 5], [30, 30, 30, 30, 1], 0, 5, ChunkLimits(10, 60))
    by_rows = _cut([1, 2, 3, 4, 5], [1, 1, 1, 1, 1], 0, 5, ChunkLimits(2, 60))
    for chunks in (by_bytes, by_rows):
        assert [(chunk.after, chunk.last, chunk.rows) for chunk in chunks] == [(0, 2, 2), (2, 4, 2), (4, 5, 1)]


def test_the_id_of_a_chunk_is_that_of_its_range_and_of_the_keys_of_its_rows() -> None:
    keys, payload = ["a#0", "b#0", "c#0"], LinesPayload([b"x"] * 3)
    first, second = cut_chunks(KEY, _identity(), 0, 3, [1, 2, 3], payload, ChunkLimits(2, 60), keys)
    assert first.id == make_chunk(KEY, "gw-1", "life-now", 0, 2, keys[:2]).id
    assert second.id == make_chunk(KEY, "gw-1", "life-now", 2, 3, keys[2:]).id
    assert first.id == "e0be30a8c1d93c63e15601b0faf6550f", "another version must not give a range another id"


def test_the_last_chunk_ends_at_the_end_of_the_page() -> None:
    """Otherwise the gap after it would look like a refused range."""
    (chunk,) = _cut([3, 5], [1, 1], 2, 40, ChunkLimits(10, 10))
    assert (chunk.after, chunk.last, chunk.rows) == (2, 40, 2)


@pytest.mark.hazard(71)
def test_rows_of_an_earlier_incarnation_are_delivered_under_it() -> None:
    chunks = _cut([3, 5, 8], [1, 1, 1], 2, 9, ChunkLimits(10, 10), 5)
    assert [(chunk.incarnation, chunk.after, chunk.last) for chunk in chunks] == [("life-0", 2, 5), ("life-now", 5, 9)]


@pytest.mark.hazard(18)
@pytest.mark.hazard(19)
@pytest.mark.hazard(20)
def test_the_id_of_a_chunk_depends_only_on_its_range_and_keys() -> None:
    """The id depends neither on the round nor on bytes or paths."""
    whole = _cut([3, 5, 8, 9], [4, 4, 4, 4], 2, 9, ChunkLimits(2, 99))
    rest = _cut([8, 9], [7, 7], 5, 9, ChunkLimits(2, 99))
    assert whole[1].id == rest[0].id
    ids = {
        make_chunk(StreamKey(sink, dataset, source), gateway, incarnation, after, last).id
        for sink in ("a", "b")
        for dataset in ("d", "e")
        for source in ("a b", "a_b")
        for gateway in ("g", "h")
        for incarnation in ("i", "j")
        for after, last in ((1, 2), (1, 3), (2, 3), (12, 3))
    }
    assert len(ids) == 2**5 * 4


@pytest.mark.hazard(97)
def test_other_rows_in_the_same_range_get_another_id() -> None:
    """A home that was rolled back plans the same range with other rows; a plain server only knows ids."""
    whole, other = (make_chunk(KEY, "gw-1", "life", 0, 4, keys) for keys in (("a", "b"), ("a", "c")))
    assert whole.id != other.id
    halves = [
        [part.id for part in halve_chunk(KEY, "gw-1", PlannedChunk(chunk.id, "life", 0, 4, 2), [1, 2])]
        for chunk in (whole, other)
    ]
    assert not set(halves[0]) & set(halves[1])


@given(st.lists(st.integers(1, 60), min_size=2, max_size=12, unique=True).map(sorted))
def test_halves_divide_the_rows_and_are_contiguous(seqs: list[int]) -> None:
    chunk = PlannedChunk("id", "life", seqs[0] - 1, seqs[-1] + 3, len(seqs))
    first, second = halve_chunk(KEY, "gw-1", chunk, seqs)
    assert (first.after, first.last, second.last) == (chunk.after, second.after, chunk.last)
    assert first.rows + second.rows == len(seqs)
    assert sum(1 for seq in seqs if seq <= first.last) == first.rows >= 1
    assert second.rows >= 1


def test_missing_chunks_are_the_holes_and_the_rows_above() -> None:
    chunk = PlannedChunk("id", "life", 10, 50, 40)
    covered = StreamCoverage(40, ((0, 5), (8, 12), (20, 22), (39, 40)))
    parts = missing_chunks(KEY, "gw-1", chunk, list(range(11, 51)), covered)
    assert [(part.after, part.last, part.rows) for part in parts] == [
        (10, 12, 2),
        (20, 22, 2),
        (39, 40, 1),
        (40, 50, 10),
    ]
    assert missing_chunks(KEY, "gw-1", chunk, [], StreamCoverage(60)) == []


def test_a_table_payload_knows_the_size_of_each_row(tmp_path: Path) -> None:
    import pyarrow as pa

    from hypaware.export.sink import TablePayload

    table = pa.table({"a": ["x" * 10, None, "é"], "n": [1, 2, None], "nothing": pa.nulls(3, pa.int64())})
    assert TablePayload(table).sizes == [18, 8, 10]
    assert TablePayload(table).slice(1, 3).sizes == [8, 10]
