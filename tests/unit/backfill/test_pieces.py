"""One source as a piece of a build: the same rows under the same numbers each time, whatever happens beside it."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hypaware.backfill import pinning, reading, registry
from hypaware.backfill.lots import Lot, Origin, pieces
from hypaware.backfill.pieces import SourcePiece, SourceReport
from hypaware.backfill.pinned import Window
from hypaware.lake.build import Built
from hypaware.model.datasets import Row
from hypaware.model.messages import AI_GATEWAY_MESSAGES
from tests.claude_files import grow, turns, write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "projects" / "p" / "s.jsonl", turns("s", 4))


def piece_of(path: Path, first_seq: int = 1) -> SourcePiece:
    environment = {"HOME": "/nonexistent", "CLAUDE_CONFIG_DIR": str(path.parents[2])}
    entry = registry.providers().get("claude")
    assert entry is not None
    found = pinning.survey(entry.provider, environment, {}, Window(), datetime.now(UTC))
    (piece,) = pieces(Lot(tuple(found.due)), Origin("claude", "ai_gateway_messages", environment, "gw"), first_seq - 1)
    return piece


def read(piece: SourcePiece) -> tuple[list[tuple[int, Row]], SourceReport]:
    built = Built()
    rows = list(piece.rows(AI_GATEWAY_MESSAGES, built))
    (report,) = built.notes
    return rows, report


@pytest.mark.hazard(81)
def test_a_task_that_is_tried_again_sees_the_pinned_bytes_and_no_more(path: Path) -> None:
    """Read to the end, the second try would give other rows under the sequences of the first."""
    piece = piece_of(path, first_seq=500)
    first, report = read(piece)
    grow(path, turns("s", 3, first=4), age=0)
    assert read(piece)[0] == first
    assert [seq for seq, _ in first] == list(range(500, 512))
    assert report.mark is not None
    assert report.mark.consumed == report.mark.size < path.stat().st_size


@pytest.mark.parametrize("change", ["replaced", "cut", "removed"])
def test_a_source_that_changes_under_the_import_is_told_and_stays_due(path: Path, change: str) -> None:
    piece = piece_of(path)
    if change == "replaced":
        other = path.with_name("other")
        other.write_bytes(path.read_bytes())
        other.replace(path)
    elif change == "cut":
        os.truncate(path, 100)
    else:
        path.unlink()
    rows, report = read(piece)
    assert rows == []
    assert report.mark is None
    assert report.changed == ("vanished" if change == "removed" else "changed")
    assert report.error is None


def test_a_source_that_is_cut_while_it_is_read_is_told_and_stays_due(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_KEPT_BYTES", 10)
    piece = piece_of(path)
    built = Built()
    rows = piece.rows(AI_GATEWAY_MESSAGES, built)
    next(rows)
    os.truncate(path, 10)
    list(rows)
    (report,) = built.notes
    assert (report.mark, report.changed, report.error) == (None, "changed", None)


def test_a_row_never_gets_a_number_of_the_next_block(path: Path) -> None:
    """Two rows with one sequence would be one for every destination."""
    rows, report = read(replace(piece_of(path), max_rows=5))
    assert len(rows) == 5
    assert report.fault is not None
    assert report.fault.kind == "invalid_yield"


def test_a_mark_vouches_for_the_bytes_that_were_read_and_not_for_those_that_took_their_place(path: Path) -> None:
    """Hashed afterwards, other bytes would count as imported, and their rows would never come."""
    piece = piece_of(path)
    built = Built()
    rows = piece.rows(AI_GATEWAY_MESSAGES, built)
    next(rows)
    with path.open("r+b") as file:
        file.write(b"x" * 50)
    list(rows)
    (report,) = built.notes
    assert report.mark is not None
    again = replace(piece.pinned, consumed=report.mark.consumed, prefix_hash=report.mark.prefix_hash)
    with reading.Reading(again) as second:
        second.start_over_if_rewritten()
        assert second.source.consumed == 0
