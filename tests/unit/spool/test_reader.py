"""Reading the spool while producers and flushes run: every row that a flush would commit, once, in little memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hypaware.home import Home
from hypaware.model.datasets import coerce_row
from hypaware.spool import reader, segments
from hypaware.spool.segments import SpoolFolder
from hypaware.spool.writer import SealRule, Spool
from tests.support.rows import DATASET, MESSAGES, rows

if TYPE_CHECKING:
    from tests.unit.spool.conftest import Spooled

_NEVER = SealRule(linger=float("inf"))


def _after(function: Callable[..., list[object]], then: Callable[[], object]) -> Callable[..., list[object]]:
    """Wrap a function so that something happens right after its first call."""
    left = [then]

    def followed(*args: object) -> list[object]:
        result = function(*args)
        if left:
            left.pop()()
        return result

    return followed


def test_rows_are_read_as_they_were_coerced(home: Home) -> None:
    with Spool(home) as spool:
        spool.append(DATASET, rows(2))
        expected = [coerce_row(MESSAGES, raw, spool.gateway_id) for raw in rows(2)]
    assert list(reader.read_spooled_rows(home, DATASET)) == expected


def test_only_selected_columns_are_read_and_missing_ones_are_null(home: Home) -> None:
    with Spool(home) as spool:
        spool.append(DATASET, rows(1))
    (found,) = reader.read_spooled_rows(home, DATASET, ["message_id", "cwd"])
    assert found == {"message_id": "message-0", "cwd": None}


def test_a_home_without_a_spool_has_no_spooled_rows(home: Home, spooled: Spooled) -> None:
    assert spooled() == []
    assert reader.summarize_spool(home, DATASET) == reader.SpoolContents(DATASET, 0, 0, 0, None)


def test_spool_contents_are_derived_from_names_and_sizes(home: Home, folder: SpoolFolder) -> None:
    with Spool(home, _NEVER) as spool:
        spool.append(DATASET, rows(3))
        spool.seal()
        spool.append(DATASET, rows(1, 3))
        found = reader.summarize_spool(home, DATASET)
    held = sum(path.stat().st_size for path in folder.sealed.iterdir())
    (first, _) = segments.list_sealed_segments(folder)
    assert (found.segments, found.rows, found.bytes) == (2, 3, held)
    assert found.oldest_at == int(first.name.partition("-")[0]) / 1000


@pytest.mark.parametrize("listing", ["list_active_files", "list_sealed_segments"])
def test_a_segment_that_is_sealed_during_a_read_is_found_once(
    home: Home, spooled: Spooled, monkeypatch: pytest.MonkeyPatch, listing: str
) -> None:
    """Otherwise an acknowledged row would stay in the spool while a flush reports nothing to do."""
    with Spool(home, _NEVER) as spool:
        spool.append(DATASET, rows(2))
        monkeypatch.setattr(segments, listing, _after(getattr(segments, listing), spool.seal))
        assert reader.summarize_spool(home, DATASET).segments == 1
        spool.append(DATASET, rows(1, 2))
        monkeypatch.setattr(segments, listing, _after(getattr(segments, listing), spool.seal))
        assert spooled() == ["message-0", "message-1", "message-2"]


def test_segment_names_of_one_process_stay_ordered_within_a_millisecond_and_when_the_clock_is_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter([5_000_000_000_000] * 50 + [4_000_000_000_000] * 50)
    monkeypatch.setattr(segments, "_last_millisecond", 0)
    monkeypatch.setattr("hypaware.spool.segments.time.time_ns", lambda: next(times) * 1_000_000)
    names = [segments.new_segment_name() for _ in range(100)]
    assert names == sorted(names)


def test_a_segment_that_is_flushed_during_a_read_is_skipped(home: Home, folder: SpoolFolder, spooled: Spooled) -> None:
    with Spool(home, _NEVER) as spool:
        for number in range(3):
            spool.append(DATASET, rows(1, number))
            spool.seal()
    reading = reader.read_spooled_rows(home, DATASET)
    assert next(reading)["message_id"] == "message-0"
    segments.list_sealed_segments(folder)[1].path.unlink()
    assert [found["message_id"] for found in reading] == ["message-2"]


@pytest.mark.hazard(6)
def test_a_half_written_line_is_not_read(home: Home, folder: SpoolFolder, spooled: Spooled) -> None:
    good = [coerce_row(MESSAGES, raw, "gw-1") for raw in rows(3)]
    lines = segments.encode_lines(good, 0)
    half = lines[: lines.rindex(b'"n":2')]
    (folder.active / "1-a.jsonl").write_bytes(half)
    reading = reader.read_spooled_rows(home, DATASET)
    assert [next(reading)["message_id"], next(reading)["message_id"]] == ["message-0", "message-1"]
    with open(folder.active / "1-a.jsonl", "ab") as file:
        file.write(lines[len(half) :])
    assert [found["message_id"] for found in reading] in ([], ["message-2"])
    assert spooled() == ["message-0", "message-1", "message-2"]


@pytest.mark.hazard(2)
def test_all_rows_of_a_segment_with_a_wrong_count_are_read_as_a_flush_does(
    folder: SpoolFolder, spooled: Spooled
) -> None:
    good = [coerce_row(MESSAGES, raw, "gw-1") for raw in rows(3)]
    (folder.sealed / "1-a.2.jsonl").write_bytes(segments.encode_lines(good, 0))
    assert spooled() == ["message-0", "message-1", "message-2"]


def test_a_segment_without_a_row_count_in_its_name_is_counted(folder: SpoolFolder, spooled: Spooled) -> None:
    good = [coerce_row(MESSAGES, raw, "gw-1") for raw in rows(2)]
    (folder.sealed / "by-hand.jsonl").write_bytes(segments.encode_lines(good, 0))
    assert [segment.rows for segment in segments.list_sealed_segments(folder)] == [2]
    assert spooled() == ["message-0", "message-1"]


def test_reading_changes_nothing(home: Home, spooled: Spooled) -> None:
    with Spool(home, _NEVER) as spool:
        spool.append(DATASET, rows(2))
        spool.seal()
        spool.append(DATASET, rows(2, 2))
        before = _everything(home.spool)
        spooled()
        reader.summarize_spool(home, DATASET)
        assert _everything(home.spool) == before


def _everything(root: Path) -> dict[Path, tuple[int, int, int]]:
    return {
        path: (found.st_ino, found.st_size, found.st_mtime_ns) for path in root.rglob("*") if (found := path.stat())
    }


@pytest.mark.hazard(7)
def test_memory_does_not_grow_with_the_spool(home: Home, folder: SpoolFolder) -> None:
    def peak(segment_count: int) -> int:
        good = [coerce_row(MESSAGES, raw, "gw-1") for raw in rows(200, content_text="x" * 2_000)]
        lines = segments.encode_lines(good, 0)
        for number in range(segment_count):
            (folder.sealed / f"{number:013d}-a.200.jsonl").write_bytes(lines)
        tracemalloc.start()
        count = sum(1 for _ in reader.read_spooled_rows(home, DATASET))
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert count == 200 * segment_count
        return highest

    small, large = peak(1), peak(20)
    assert large < small + (200 << 10)
