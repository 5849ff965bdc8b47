"""Reading a pinned source: whole lines only, limits on everything, a reason for each skipped line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hypaware.clients import reader
from hypaware.clients.reader import SourceChanged, SourceReader, SourceSnapshot, TimeWindow
from tests.support.history import pin


def read(path: Path, **pinned: Any) -> tuple[list[dict[str, Any]], SourceReader]:
    with SourceReader(pin(path, **pinned)) as reading:
        return [line.value for line in reading.lines()], reading


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "source.jsonl"


@pytest.mark.hazard(60)
@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"garbage", "not_json"),
        (b'{"a": NaN}', "not_json"),
        (b"[1, 2]", "not_an_object"),
        (b"\xff\xfe{}", "not_utf8"),
        (b'{"a": "\x00"}', "nul_bytes"),
        (b'{"a": "\\ud800"}', "not_json"),
        (b'{"a":' + b"[" * 2000 + b"]" * 2000 + b"}", "nested_too_deeply"),
    ],
)
def test_an_invalid_line_is_counted_with_its_reason_and_the_others_are_read(
    path: Path, raw: bytes, reason: str
) -> None:
    path.write_bytes(b'{"n": 1}\n' + raw + b'\n\n{"n": 2}\n')
    found, reading = read(path)
    assert [value["n"] for value in found] == [1, 2]
    assert dict(reading.skipped) == {reason: 1}
    assert reading.consumed == path.stat().st_size


@pytest.mark.hazard(60)
def test_a_line_beyond_the_limit_is_skipped_without_being_kept_in_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MAX_LINE_BYTES", 50)
    monkeypatch.setattr(reader, "_BLOCK", 16)
    path.write_bytes(b'{"n": 1}\n{"long": "' + b"x" * 500 + b'"}\n{"n": 2}\n')
    found, reading = read(path)
    assert [value["n"] for value in found] == [1, 2]
    assert dict(reading.skipped) == {"line_too_long": 1}


def test_an_incomplete_last_line_is_left_for_the_next_import(path: Path) -> None:
    path.write_bytes(b'{"n": 1}\n{"n": 2, "te')
    found, reading = read(path)
    assert len(found) == 1
    assert (reading.consumed, dict(reading.skipped)) == (9, {"half_line": 1})


def test_a_last_line_without_a_newline_counts_if_it_is_complete(path: Path) -> None:
    path.write_bytes(b'{"n": 1}\n{"n": 2}')
    found, reading = read(path)
    assert len(found) == 2
    assert reading.consumed == path.stat().st_size
    with path.open("ab") as file:
        file.write(b'\n{"n": 3}\n')
    _, again = read(path, consumed=reading.consumed)
    assert not again.is_new(9)
    assert again.is_new(18)


def test_lines_counted_by_an_earlier_import_are_not_counted_again(path: Path) -> None:
    path.write_bytes(b'garbage\n{"n": 1}\nrubbish\n')
    _, reading = read(path, consumed=8)
    assert dict(reading.skipped) == {"not_json": 1}


def test_a_large_source_is_not_kept_in_memory_and_reads_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(b"".join(b'{"n": %d}\n' % number for number in range(100)))
    monkeypatch.setattr(reader, "_MAX_KEPT_BYTES", 10)
    found, _ = read(path)
    assert [value["n"] for value in found] == list(range(100))


def test_whole_numbers_keep_their_digits(path: Path) -> None:
    path.write_bytes(b'{"n": 123456789012345678901234567890}\n')
    assert read(path)[0] == [{"n": 123456789012345678901234567890}]


def test_a_rewritten_source_is_detected_by_the_hash_of_its_prefix(path: Path) -> None:
    path.write_bytes(b'{"n": 1}\n{"n": 2}\n')
    _, reading = read(path, size=9)
    taken = reading.consumed_hash
    with SourceReader(pin(path, consumed=9, prefix_hash=taken, held=frozenset({"m"}))) as same:
        assert same.source.consumed == 9
    path.write_bytes(b'{"n": 7}\n{"n": 2}\n')
    with SourceReader(pin(path, consumed=9, prefix_hash=taken, held=frozenset({"m"}))) as other:
        assert (other.source.consumed, other.source.held) == (0, frozenset())


def test_another_file_under_the_same_name_is_rejected(path: Path) -> None:
    path.write_bytes(b"{}\n")
    with pytest.raises(SourceChanged), SourceReader(pin(path, inode=1)):
        raise AssertionError("it was opened")


def test_only_lines_outside_the_window_are_new_for_the_next_import(path: Path) -> None:
    path.write_bytes(b"".join(b'{"t": "2026-01-%02d"}\n' % day for day in range(1, 10)))
    size = len(b'{"t": "2026-01-01"}\n')
    with SourceReader(pin(path, window=TimeWindow("2026-01-03", "2026-01-06"))) as reading:
        wanted = [reading.wants(line, line.value["t"]) for line in reading.lines()]
    assert wanted == [False] * 2 + [True] * 4 + [False] * 3
    assert reading.left_out == [(0, 2 * size), (6 * size, 9 * size)]
    assert reading.effective_window() == TimeWindow("2026-01-03", "2026-01-06")
    with SourceReader(pin(path, consumed=reading.consumed, left_out=tuple(reading.left_out))) as wider:
        new = [wider.is_new(line.offset) for line in wider.lines()]
        assert new == [not each for each in wanted]


def test_a_window_that_excluded_nothing_counts_as_unbounded(path: Path) -> None:
    path.write_bytes(b"{}\n")
    narrow = TimeWindow("2026-01-01T00:00:00.000000Z", None)
    with SourceReader(pin(path, window=narrow)) as reading:
        (line,) = reading.lines()
        assert reading.wants(line, None)
        assert reading.effective_window() == TimeWindow()
    silent = SourceReader(pin(path, window=narrow))
    assert silent.effective_window() == narrow, "a provider that never asks may have left out anything"
    assert silent.left_out == [(0, 3)]


@pytest.mark.parametrize(
    ("imported", "requested", "covered"),
    [
        (TimeWindow(), TimeWindow("2026", "2027"), True),
        (TimeWindow("2026", None), TimeWindow("2026", None), True),
        (TimeWindow("2026", None), TimeWindow("2025", None), False),
        (TimeWindow("2026", None), TimeWindow(), False),
        (TimeWindow(None, "2026"), TimeWindow(None, None), False),
        (TimeWindow("2024", "2026"), TimeWindow("2025", "2026"), True),
    ],
)
def test_a_window_covers_narrower_windows(imported: TimeWindow, requested: TimeWindow, covered: bool) -> None:
    assert imported.covers(requested) is covered


def test_a_new_source_snapshot_has_no_imported_prefix() -> None:
    pinned = SourceSnapshot(Path("x"), 1, 2, 3)
    assert (pinned.consumed, pinned.held, pinned.quiet) == (0, frozenset(), True)
