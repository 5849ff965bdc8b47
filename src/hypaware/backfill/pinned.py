"""A source as it was when the import began, and the time window of the import."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Window:
    """An inclusive range of times in canonical UTC text; None is unbounded. A missing time is inside."""

    since: str | None = None
    until: str | None = None

    def contains(self, time: str | None) -> bool:
        if time is None:
            return True
        return (self.since is None or time >= self.since) and (self.until is None or time <= self.until)

    def covers(self, other: Window) -> bool:
        lower = self.since is None or (other.since is not None and self.since <= other.since)
        upper = self.until is None or (other.until is not None and self.until >= other.until)
        return lower and upper


@dataclass(frozen=True)
class Pinned:
    """A source as it was when the import began, and how far earlier imports have read it."""

    path: Path
    inode: int
    size: int
    mtime_ns: int
    consumed: int = 0
    """Lines that begin before this offset were imported by an earlier run, except those in `held` and `left_out`."""
    prefix_hash: str = ""
    """SHA-256 of the bytes before `consumed`."""
    held: frozenset[str] = frozenset()
    """Messages that the earlier import held back because they were unfinished."""
    quiet: bool = True
    """The file has not been written to for a while, so unfinished messages will stay unfinished."""
    window: Window = Window()
    left_out: tuple[tuple[int, int], ...] = ()
    """Ranges of offsets before `consumed` that were not imported because they were outside the window."""
    ignored: tuple[tuple[str | None, str | None], ...] = ()
    """(folder, session) of lines before `consumed` that were not imported because they are ignored."""


def inode_of(status: os.stat_result) -> int:
    """Return the inode number, cut to 63 bits: some file systems use larger numbers than SQLite can store."""
    return status.st_ino & (2**63 - 1)
