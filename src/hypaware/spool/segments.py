"""Names and folders of segments.

A segment is `spool/<dataset>/active/<time>-<random>.jsonl` while its producer holds its flock, and then
`spool/<dataset>/sealed/<time>-<random>.<rows>.jsonl`. Names sort by creation time; the names of one process keep its
order. Deferrable rows, which wait for a better source of the same parts, are in separate segments with `-waits` after
the random part.

@ref spool#deferred
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hypaware import durable
from hypaware.home import Home

SUFFIX = ".jsonl"
NEW_PREFIX = ".new-"

_WAITS = "-waits"
PATIENCE_SECONDS = 600.0
"""How long deferrable rows wait: long enough for their transcript to be imported."""

_secured: set[Path] = set()
_naming = threading.Lock()
_last_millisecond = 0


@dataclass(frozen=True)
class Folder:
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
            durable.make_dir(folder)
        # Their creator may have been killed before the directory entries were durable: fsync once per process.
        if self.path not in _secured:
            for parent in (self.path, self.path.parent, self.path.parent.parent):
                durable.fsync_dir(parent)
            _secured.add(self.path)


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
        return may_wait(self.name) and created.isdecimal() and 0 <= now - int(created) / 1000 < PATIENCE_SECONDS


def may_wait(name: str) -> bool:
    """Tell from a segment's name whether its rows are deferrable."""
    return name.partition(".")[0].endswith(_WAITS)


def folder(home: Home, dataset: str) -> Folder:
    return Folder(dataset, home.spool / dataset)


def datasets_with_spool(home: Home) -> list[str]:
    return sorted(path.name for path in home.spool.iterdir() if path.is_dir()) if home.spool.is_dir() else []


def new_name(*, deferrable: bool = False) -> str:
    """Return a name that sorts after all earlier names of this process, even within one millisecond."""
    global _last_millisecond
    with _naming:
        _last_millisecond = max(time.time_ns() // 1_000_000, _last_millisecond + 1)
        return f"{_last_millisecond:013d}-{secrets.token_hex(6)}{_WAITS if deferrable else ''}"


def sealed_name(name: str, rows: int) -> str:
    return f"{name}.{rows}{SUFFIX}"


def active_files(spool: Folder) -> list[Path]:
    return _listed(spool.active)


def sealed_segments(spool: Folder) -> list[Segment]:
    """Return the sealed segments, oldest first."""
    return list(_segments(spool))


def _segments(spool: Folder) -> Iterator[Segment]:
    for path in _listed(spool.sealed):
        name = path.name.removesuffix(SUFFIX)
        rows = name.partition(".")[2]
        try:
            size = path.stat().st_size
            counted = int(rows) if rows.isdecimal() else count_lines(path)
        except FileNotFoundError:
            continue
        yield Segment(spool.dataset, name, path, counted, size)


def count_lines(path: Path) -> int:
    """Count the lines of a file, including a last one without a newline."""
    lines, last = 0, b"\n"
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            lines, last = lines + block.count(b"\n"), block[-1:]
    return lines + (last != b"\n")


def _listed(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix == SUFFIX and not path.name.startswith("."))
