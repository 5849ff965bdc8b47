"""Building one source: the same rows with the same sequences each time, even if the file changes."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hypaware.backfill import providers, survey
from hypaware.backfill.batches import ImportBatch, make_tasks
from hypaware.backfill.source_rows import ImportContext, SourcePiece, SourceReport
from hypaware.clients import reader
from hypaware.clients.reader import TimeWindow
from hypaware.lake.build import BuildResult, BuildSettings
from hypaware.model.datasets import Row
from hypaware.model.schemas import AI_GATEWAY_MESSAGES
from tests.support.claude_files import grow, turns, write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "projects" / "p" / "s.jsonl", turns("s", 4))


def piece_of(path: Path, first_seq: int = 1) -> SourcePiece:
    environment = {"HOME": "/nonexistent", "CLAUDE_CONFIG_DIR": str(path.parents[2])}
    entry = providers.load_providers().get("claude")
    assert entry is not None
    found = survey.survey_sources(entry.provider, environment, {}, TimeWindow(), datetime.now(UTC))
    context = ImportContext("claude", "ai_gateway_messages", environment, "gw")
    settings = BuildSettings("ai_gateway_messages", "flush", path.parent, {})
    (task,) = make_tasks(ImportBatch(tuple(found.due)), context, settings, first_seq - 1)
    (piece,) = task.sources
    return piece


def read(piece: SourcePiece) -> tuple[list[tuple[int, Row]], SourceReport]:
    built = BuildResult()
    rows = list(piece.rows(AI_GATEWAY_MESSAGES, built))
    (report,) = built.reports
    return rows, report


@pytest.mark.hazard(81)
def test_a_retried_task_reads_exactly_the_pinned_bytes(path: Path) -> None:
    """Reading to the current end would give other rows for the sequences of the first attempt."""
    piece = piece_of(path, first_seq=500)
    first, report = read(piece)
    grow(path, turns("s", 3, first=4), age=0)
    assert read(piece)[0] == first
    assert [seq for seq, _ in first] == list(range(500, 512))
    assert report.checkpoint is not None
    assert report.checkpoint.consumed == report.checkpoint.size < path.stat().st_size


@pytest.mark.parametrize("change", ["replaced", "cut", "removed"])
def test_a_source_that_changes_during_the_import_is_reported_and_stays_due(path: Path, change: str) -> None:
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
    assert report.checkpoint is None
    assert report.changed == ("vanished" if change == "removed" else "changed")
    assert report.error is None


def test_a_source_that_is_truncated_while_it_is_read_is_reported_and_stays_due(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_MAX_KEPT_BYTES", 10)
    piece = piece_of(path)
    built = BuildResult()
    rows = piece.rows(AI_GATEWAY_MESSAGES, built)
    next(rows)
    os.truncate(path, 10)
    list(rows)
    (report,) = built.reports
    assert (report.checkpoint, report.changed, report.error) == (None, "changed", None)


def test_a_row_never_gets_a_sequence_of_the_next_source(path: Path) -> None:
    """Destinations would treat two rows with one sequence as one."""
    rows, report = read(replace(piece_of(path), max_rows=5))
    assert len(rows) == 5
    assert report.fault is not None
    assert report.fault.kind == "invalid_yield"


def test_a_checkpoint_hashes_the_bytes_that_were_read_even_if_they_are_overwritten(path: Path) -> None:
    """If the file were hashed later, overwritten bytes would count as imported and never be read."""
    piece = piece_of(path)
    built = BuildResult()
    rows = piece.rows(AI_GATEWAY_MESSAGES, built)
    next(rows)
    with path.open("r+b") as file:
        file.write(b"x" * 50)
    list(rows)
    (report,) = built.reports
    assert report.checkpoint is not None
    again = replace(piece.snapshot, consumed=report.checkpoint.consumed, prefix_hash=report.checkpoint.prefix_hash)
    with reader.SourceReader(again) as second:
        assert second.source.consumed == 0
