"""Read the spool without changing it, while producers and flushes may be running."""

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
from hypaware.model.datasets import Row, RowRejected
from hypaware.spool import segments


@dataclass(frozen=True)
class SpoolContents:
    """The contents of a dataset's spool, from file names and sizes alone."""

    dataset: str
    segments: int
    rows: int
    bytes: int
    oldest_at: float | None


def read_spooled_rows(
    home: Home,
    dataset: str,
    columns: Sequence[str] | None = None,
    *,
    unreadable: dict[Path, OSError] | None = None,
) -> Iterator[Row]:
    """Yield the rows that a flush would commit: whole lines of sealed and active segments.

    A segment that cannot be read is added to `unreadable`, and the others are read. Without it, the error is raised.
    """
    definition = datasets.get(dataset)
    for path, sealed in _list_files(home, dataset):
        try:
            with _open_moved(path) as file:
                for ordinal, line in enumerate(file):
                    if not sealed and not line.endswith(b"\n"):
                        break  # the producer may be writing this line
                    with contextlib.suppress(RowRejected):
                        row = segments.decode_line(definition, line, ordinal)
                        yield row if columns is None else {name: row.get(name) for name in columns}
        except OSError as error:
            if unreadable is None:
                raise
            unreadable[path] = error


def summarize_spool(home: Home, dataset: str, *, skip_deferred: bool = False) -> SpoolContents:
    """Return the contents of a dataset's spool. `skip_deferred` ignores deferred segments."""
    folder = segments.spool_folder(home, dataset)
    # List active files first: a file that is sealed in between is counted as sealed, and only once.
    active = {path.stem: segments.file_size(path) for path in segments.list_active_files(folder)}
    sealed = {segment.name: segment for segment in segments.list_sealed_segments(folder)}
    moved = {_active_name(name) for name in sealed}
    if skip_deferred:
        now = time.time()
        sealed = {name: segment for name, segment in sealed.items() if not segment.is_deferred(now)}
    sizes = {name: size for name, size in active.items() if size and name not in moved}
    oldest = min([*sealed, *sizes], default="").partition("-")[0]
    return SpoolContents(
        dataset,
        segments=len(sealed) + len(sizes),
        rows=sum(segment.rows for segment in sealed.values()),
        bytes=sum(segment.bytes for segment in sealed.values()) + sum(sizes.values()),
        oldest_at=int(oldest) / 1000 if oldest.isdecimal() else None,
    )


def _list_files(home: Home, dataset: str) -> Iterator[tuple[Path, bool]]:
    """Yield each file, oldest first, and whether it is sealed."""
    folder = segments.spool_folder(home, dataset)
    # List active files first: a file that is sealed in between is read as sealed, and only once.
    active = {path.stem: path for path in segments.list_active_files(folder)}
    sealed = {segment.name: segment.path for segment in segments.list_sealed_segments(folder)}
    moved = {_active_name(name) for name in sealed}
    for name in sorted(sealed.keys() | (active.keys() - moved)):
        yield (sealed[name], True) if name in sealed else (active[name], False)


def _active_name(name: str) -> str:
    """Return the name that a sealed segment had while it was active: without its row count."""
    return name.partition(".")[0]


def _open_moved(path: Path) -> BinaryIO:
    """Open a file that may have been sealed since it was listed. A missing file was committed: return no data."""
    try:
        return open(path, "rb")
    except FileNotFoundError:
        for sealed in path.parent.parent.glob(f"sealed/{_active_name(path.name)}.*"):
            with contextlib.suppress(FileNotFoundError):
                return open(sealed, "rb")
        return io.BytesIO()
