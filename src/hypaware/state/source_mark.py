"""The checkpoint of a source file and its database form. Importing this module does not import the database."""

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
    """Lines that begin before this offset were imported, except for those of the `held` messages."""
    prefix_hash: str
    """The hash of the bytes before `consumed`."""
    held: tuple[str, ...]
    quiet: bool
    """The file had not changed for a while. Messages that are held anyway wait for more lines, not for time."""
    left_out: tuple[tuple[int, int], ...]
    """Offset ranges of lines outside the time window. They are imported when the window is extended."""
    since: str | None
    until: str | None
    """The time window that excludes all of them."""
    ignored: tuple[tuple[str | None, str | None], ...] = ()
    """(folder, session) of lines that a privacy rule excluded. They are imported when the rule is removed."""


def from_row(row: Mapping[str, Any]) -> SourceMark:
    lists = {"held": tuple(orjson.loads(row["held"])), "left_out": tuple(map(tuple, orjson.loads(row["left_out"])))}
    # A state that was not opened since the migration does not have this column yet.
    ignored = tuple(map(tuple, orjson.loads(row.get("ignored", b"[]"))))
    return SourceMark(**{**row, **lists, "quiet": bool(row["quiet"]), "ignored": ignored})


def to_row(mark: SourceMark) -> dict[str, object]:
    return {
        **asdict(mark),
        "held": orjson.dumps(mark.held).decode(),
        "left_out": orjson.dumps(mark.left_out).decode(),
        "ignored": orjson.dumps(mark.ignored).decode(),
    }
