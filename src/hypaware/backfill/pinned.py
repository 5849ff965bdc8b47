"""A source as it was when the import began, and the window of time that the import asks for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Window:
    """From and to, inclusive, as UTC text of the one written form; None is open. What has no time is inside."""

    since: str | None = None
    until: str | None = None

    def holds(self, time: str | None) -> bool:
        if time is None:
            return True
        return (self.since is None or time >= self.since) and (self.until is None or time <= self.until)

    def covers(self, other: Window) -> bool:
        lower = self.since is None or (other.since is not None and self.since <= other.since)
        upper = self.until is None or (other.until is not None and self.until >= other.until)
        return lower and upper


@dataclass(frozen=True)
class Pinned:
    """A source as it was when the import began, and how much of it earlier imports have taken."""

    path: Path
    inode: int
    size: int
    mtime_ns: int
    consumed: int = 0
    """Lines that begin before this offset were imported by an earlier run, but for those of `held`."""
    prefix_hash: str = ""
    """Of the bytes before `consumed`."""
    held: frozenset[str] = frozenset()
    """Messages that the earlier import left for later because they were unfinished."""
    quiet: bool = True
    """Nobody had written to it for a while: what looks unfinished will not be finished."""
    window: Window = Window()
    left_out: tuple[tuple[int, int], ...] = ()
    """From and to offsets of lines before `consumed` that no import took because they lay outside its window."""
    ignored: tuple[tuple[str | None, str | None], ...] = ()
    """(folder, session) of lines before `consumed` that no import took because they are ignored."""


def inode_of(status: os.stat_result) -> int:
    """Some file systems have numbers beyond what a database stores."""
    return status.st_ino & (2**63 - 1)
