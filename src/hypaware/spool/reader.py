"""Reading what waits in the spool without moving anything: beside live producers and flushes, at any time."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hypaware.home import Home
from hypaware.model import datasets
from hypaware.model.coerce import RowRejected
from hypaware.model.datasets import Row
from hypaware.spool import envelope, segments


@dataclass(frozen=True)
class Waiting:
    """What the spool of one dataset holds, told from names and sizes alone."""

    dataset: str
    segments: int
    rows: int
    bytes: int
    oldest_at: float | None


def read_spooled_rows(home: Home, dataset: str, columns: Sequence[str] | None = None) -> Iterator[Row]:
    """The rows that flush would take: sealed and active ones, as far as they are whole lines."""
    kind = datasets.get(dataset)
    for path, sealed in _pending(home, dataset):
        with _opened(path) as file:
            for ordinal, line in enumerate(file):
                if not sealed and not line.endswith(b"\n"):
                    break  # its producer may be in the middle of it: what follows would be the other half
                with contextlib.suppress(RowRejected):
                    row = envelope.read_line(kind, line, ordinal)
                    yield row if columns is None else {name: row.get(name) for name in columns}


def waiting(home: Home, dataset: str, *, patient: bool = False) -> Waiting:
    """With `patient`, without the sealed segments that may wait longer."""
    where = segments.folder(home, dataset)
    # In this order: a file that is sealed meanwhile is counted in its new place, and only there.
    active = {path.stem: _size(path) for path in segments.active_files(where)}
    sealed = {segment.name: segment for segment in segments.sealed_segments(where)}
    moved = {_stem(name) for name in sealed}
    if patient:
        now = time.time()
        sealed = {name: segment for name, segment in sealed.items() if not segment.waits(now)}
    sizes = {name: size for name, size in active.items() if size and name not in moved}
    oldest = min([*sealed, *sizes], default="").partition("-")[0]
    return Waiting(
        dataset,
        segments=len(sealed) + len(sizes),
        rows=sum(segment.rows for segment in sealed.values()),
        bytes=sum(segment.bytes for segment in sealed.values()) + sum(sizes.values()),
        oldest_at=int(oldest) / 1000 if oldest.isdecimal() else None,
    )


def _pending(home: Home, dataset: str) -> Iterator[tuple[Path, bool]]:
    """Each file, oldest first, and whether it is sealed."""
    where = segments.folder(home, dataset)
    # In this order: a file that is sealed meanwhile is found in its new place, and only there.
    active = {path.stem: path for path in segments.active_files(where)}
    sealed = {segment.name: segment.path for segment in segments.sealed_segments(where)}
    moved = {_stem(name) for name in sealed}
    for name in sorted(sealed.keys() | (active.keys() - moved)):
        yield (sealed[name], True) if name in sealed else (active[name], False)


def _stem(name: str) -> str:
    """A sealed segment's name before its count: the one it had while it was active."""
    return name.partition(".")[0]


def _opened(path: Path) -> BinaryIO:
    """A file that was sealed since it was listed is found in its new place; one that is gone is in the lake."""
    try:
        return open(path, "rb")
    except FileNotFoundError:
        for sealed in path.parent.parent.glob(f"sealed/{_stem(path.name)}.*"):
            with contextlib.suppress(FileNotFoundError):
                return open(sealed, "rb")
        return io.BytesIO()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
