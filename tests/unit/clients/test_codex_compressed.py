"""Codex's compressed rollouts: the rows of the plain file, and nothing lost if the file is damaged."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from backports import zstd

from hypaware.backfill.source_rows import ImportContext, SourcePiece
from hypaware.backfill.survey import pin_source
from hypaware.clients import compressed_content
from hypaware.clients.client import Source
from hypaware.clients.codex.history import CodexHistory
from hypaware.clients.reader import SourceReader, TimeWindow
from hypaware.follow.source_recorder import _SourceResult
from hypaware.model.schemas import AI_GATEWAY_MESSAGES
from hypaware.state.flushes import SourceCheckpoint
from tests.support.codex_rollouts import NAME, PROVIDER, as_bytes, meta, sample, sample_names, says, turn
from tests.support.history import comparable, pin, rows_of

LINES = (meta(), turn(), says("user", "Do it."), says("assistant", "Done."))


def write_compressed(folder: Path, content: bytes, *, frames: int = 1) -> Path:
    step = -(-len(content) // frames)
    parts = [content[at : at + step] for at in range(0, len(content), step)]
    path = folder / f"{NAME}.zst"
    path.write_bytes(b"".join(zstd.compress(part, level=3) for part in parts))
    return path


@pytest.mark.parametrize("name", sample_names())
def test_a_compressed_rollout_gives_the_rows_of_the_plain_one(tmp_path: Path, name: str) -> None:
    content = sample(name)
    plain = tmp_path / name
    plain.write_bytes(content)
    packed = tmp_path / f"{name}.zst"
    packed.write_bytes(zstd.compress(content, level=3))

    rows, reading = rows_of(PROVIDER, packed)
    expected, expected_reading = rows_of(PROVIDER, plain)
    columns = [column.name for column in AI_GATEWAY_MESSAGES.columns if column.name != "row_id"]
    assert [[comparable(row, column) for column in columns] for row in rows] == [
        [comparable(row, column) for column in columns] for row in expected
    ]
    assert reading.skipped == expected_reading.skipped


def test_several_frames_are_read_as_one_content(tmp_path: Path) -> None:
    rows, reading = rows_of(PROVIDER, write_compressed(tmp_path, as_bytes(LINES), frames=3))

    assert [row["content_text"] for row in rows] == ["Do it.", "Done."]
    assert not reading.skipped


@pytest.mark.hazard(60)
def test_what_precedes_a_damaged_part_is_imported(tmp_path: Path) -> None:
    path = write_compressed(tmp_path, as_bytes(LINES))
    path.write_bytes(path.read_bytes() + b"not compressed")

    rows, reading = rows_of(PROVIDER, path)
    assert [row["content_text"] for row in rows] == ["Do it.", "Done."]
    assert reading.skipped["damaged_compression"] == 1


@pytest.mark.hazard(60)
@pytest.mark.parametrize("content", [b"x", b"garbage that is not zstd at all", b"\x28\xb5\x2f\xfd", b"\0" * 100])
def test_a_file_that_is_not_compressed_is_counted(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / f"{NAME}.zst"
    path.write_bytes(content)

    rows, reading = rows_of(PROVIDER, path)
    assert rows == []
    assert reading.skipped["damaged_compression"] == 1


@pytest.mark.hazard(60)
def test_a_small_file_cannot_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_compressed(tmp_path, b" " * (4 << 20))
    monkeypatch.setattr(compressed_content, "_BLOCK", 1 << 16)
    with path.open("rb") as file, pytest.raises(OSError, match="File too large"):
        compressed_content.unpack(file, path.stat().st_size, 1 << 20)


@pytest.mark.parametrize("content", [b"", b"{}\n" * 40_000, b"x" * (1 << 20)])
def test_the_most_rows_that_are_reserved_are_enough(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / ".codex" / "sessions"
    folder.mkdir(parents=True)
    path = write_compressed(folder, content + as_bytes(LINES))
    (source,) = (each for each in CodexHistory().find({"HOME": str(tmp_path)}) if isinstance(each, Source))
    with SourceReader(pin(path)) as reading:
        assert source.max_rows is not None
        assert source.max_rows * 16 >= reading.size


def read_piece(path: Path, checkpoint: SourceCheckpoint | None, window: TimeWindow) -> SourceCheckpoint | None:
    """Read a source as an import does, and return its new checkpoint; None if it is not due."""
    now = datetime.now(UTC) + timedelta(days=1)
    snapshot = pin_source(path, path.stat(), checkpoint, window, now)
    if snapshot is None:
        return None
    context = ImportContext("codex", "ai_gateway_messages", {"HOME": "/nonexistent"}, "gateway-1")
    result = _SourceResult()
    assert list(SourcePiece(context, 1, 1 << 20, snapshot).rows(AI_GATEWAY_MESSAGES, result)) or window.since
    (report,) = result.reports
    assert isinstance(report.checkpoint, SourceCheckpoint)
    return report.checkpoint


def test_a_compressed_rollout_is_due_until_it_was_read_with_the_widest_window(tmp_path: Path) -> None:
    path = write_compressed(tmp_path, as_bytes(LINES))
    late = TimeWindow("2030-01-01T00:00:00.000000Z")

    narrow = read_piece(path, None, late)
    assert narrow is not None
    assert read_piece(path, narrow, late) is None
    whole = read_piece(path, narrow, TimeWindow())
    assert whole is not None
    assert whole.consumed == path.stat().st_size
    assert read_piece(path, whole, TimeWindow()) is None
