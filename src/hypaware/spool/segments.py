"""Segments: their folders, their names, and the envelope of each line.

A segment is `spool/<dataset>/active/<time>-<random>.jsonl` while its producer holds its flock, and then
`spool/<dataset>/sealed/<time>-<random>.<rows>.jsonl`. Names sort by creation time; the names of one process keep its
order. Deferrable rows, which wait for a better source of the same parts, are in separate segments with `-waits` after
the random part.

A line is `{"n":<ordinal>,"v":1,"row":{…}}`. The ordinal is the line's position in its segment, from 0. A row's sequence
is its segment's base plus its ordinal, so reading a line again gives the same row. `decode_line` is the only check of a
line's validity, so all readers of the spool agree.

@ref spool#deferred
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import orjson

from hypaware.home import Home, durable_files
from hypaware.model import canonical
from hypaware.model.datasets import Dataset, Row, RowRejected, coerce_row

SUFFIX = ".jsonl"
NEW_PREFIX = ".new-"
_DEFERRABLE_SUFFIX = "-waits"
DEFERRAL_SECONDS = 600.0
"""How long deferrable rows wait: long enough for their transcript to be imported."""
_synced_folders: set[Path] = set()
_name_lock = threading.Lock()
_last_millisecond = 0
ENVELOPE_VERSION = 1


@dataclass(frozen=True)
class SpoolFolder:
    """The spool of one dataset."""

    dataset: str
    path: Path

    @property
    def active(self) -> Path:
        return self.path / "active"

    @property
    def sealed(self) -> Path:
        return self.path / "sealed"

    @property
    def rejected(self) -> Path:
        return self.path / "rejected"

    def create(self) -> None:
        for folder in (self.active, self.sealed, self.rejected):
            durable_files.make_dir(folder)
        # Their creator may have been killed before the directory entries were durable: fsync once per process.
        if self.path not in _synced_folders:
            for parent in (self.path, self.path.parent, self.path.parent.parent):
                durable_files.fsync_dir(parent)
            _synced_folders.add(self.path)


def spool_folder(home: Home, dataset: str) -> SpoolFolder:
    return SpoolFolder(dataset, home.spool / dataset)


def list_spooled_datasets(home: Home) -> list[str]:
    return sorted(path.name for path in home.spool.iterdir() if path.is_dir()) if home.spool.is_dir() else []


@dataclass(frozen=True)
class Segment:
    """A sealed segment."""

    dataset: str
    name: str
    path: Path
    rows: int
    bytes: int

    def is_deferred(self, now: float) -> bool:
        """Tell whether a background flush skips this segment. A clock that was set back ends the deferral."""
        created = self.name.partition("-")[0]
        return is_deferrable(self.name) and created.isdecimal() and 0 <= now - int(created) / 1000 < DEFERRAL_SECONDS


def is_deferrable(name: str) -> bool:
    """Tell from a segment's name whether its rows are deferrable."""
    return name.partition(".")[0].endswith(_DEFERRABLE_SUFFIX)


def new_segment_name(*, deferrable: bool = False) -> str:
    """Return a name that sorts after all earlier names of this process, even within one millisecond."""
    global _last_millisecond
    with _name_lock:
        _last_millisecond = max(time.time_ns() // 1_000_000, _last_millisecond + 1)
        return f"{_last_millisecond:013d}-{secrets.token_hex(6)}{_DEFERRABLE_SUFFIX if deferrable else ''}"


def sealed_file_name(name: str, rows: int) -> str:
    return f"{name}.{rows}{SUFFIX}"


def list_active_files(spool: SpoolFolder) -> list[Path]:
    return _list_files(spool.active)


def list_sealed_segments(spool: SpoolFolder) -> list[Segment]:
    """Return the sealed segments, oldest first."""
    found = []
    for path in _list_files(spool.sealed):
        name = path.name.removesuffix(SUFFIX)
        rows = name.partition(".")[2]
        try:
            size = path.stat().st_size
            counted = int(rows) if rows.isdecimal() else count_lines(path)
        except FileNotFoundError:
            continue
        found.append(Segment(spool.dataset, name, path, counted, size))
    return found


def _list_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix == SUFFIX and not path.name.startswith("."))


def count_lines(path: Path) -> int:
    """Count the lines of a file, including a last one without a newline."""
    lines, last = 0, b"\n"
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            lines, last = lines + block.count(b"\n"), block[-1:]
    return lines + (last != b"\n")


def encode_lines(rows: Iterable[Row], first_ordinal: int) -> bytes:
    """Encode coerced rows as lines."""
    return b"".join(
        b'{"n":%d,"v":%d,"row":%b}\n' % (ordinal, ENVELOPE_VERSION, orjson.dumps(row))
        for ordinal, row in enumerate(rows, first_ordinal)
    )


def decode_line(dataset: Dataset, line: bytes, ordinal: int) -> Row:
    """Return the coerced row of a line. Raise RowRejected with the reason if the line is invalid."""
    if not line.endswith(b"\n"):
        raise RowRejected("the line is truncated")
    try:
        envelope = canonical.loads(line)
    except (ValueError, RecursionError) as error:
        raise RowRejected(f"the line is not JSON: {error}") from None
    if not isinstance(envelope, dict) or envelope.get("v") != ENVELOPE_VERSION:
        raise RowRejected(f"the line is not an envelope of version {ENVELOPE_VERSION}")
    if envelope.get("n") != ordinal:
        raise RowRejected(f"the envelope has ordinal {envelope.get('n')!r}, expected {ordinal}")
    row = envelope.get("row")
    if not isinstance(row, dict):
        raise RowRejected("the envelope has no row")
    # Keep the gateway id from when the row was recorded, even if the home has a new one.
    return coerce_row(dataset, row, str(row.get("gateway_id")))
