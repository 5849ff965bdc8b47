"""What imports have taken of one source file: a value, and its form in a database. No database is needed for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import orjson


@dataclass(frozen=True)
class SourceMark:
    provider: str
    dataset: str
    path: str
    inode: int
    size: int
    mtime_ns: int
    consumed: int
    """Lines that begin before this offset were taken, but for those of the messages held back."""
    prefix_hash: str
    """Of the bytes before `consumed`."""
    held: tuple[str, ...]
    quiet: bool
    """Nobody had written to it for a while: what was held back all the same waits for more, not for time."""
    left_out: tuple[tuple[int, int], ...]
    """From and to offsets of lines that lay outside the window, and are due for a wider one."""
    since: str | None
    until: str | None
    """The window that all of them lie outside of."""
    ignored: tuple[tuple[str | None, str | None], ...] = ()
    """(folder, session) of lines that were not taken because their user did not want it; due when that is lifted."""


def from_row(row: Mapping[str, Any]) -> SourceMark:
    lists = {"held": tuple(orjson.loads(row["held"])), "left_out": tuple(map(tuple, orjson.loads(row["left_out"])))}
    # A state that nobody has opened since then does not have it yet.
    ignored = tuple(map(tuple, orjson.loads(row.get("ignored", b"[]"))))
    return SourceMark(**{**row, **lists, "quiet": bool(row["quiet"]), "ignored": ignored})


def to_row(mark: SourceMark) -> dict[str, object]:
    return {
        **asdict(mark),
        "held": orjson.dumps(mark.held).decode(),
        "left_out": orjson.dumps(mark.left_out).decode(),
        "ignored": orjson.dumps(mark.ignored).decode(),
    }
