"""What imports have taken of each source file, so that an unchanged one is not opened and a grown one gives its news.

A mark is pending while its flush is under way and counts only when that flush is recorded: rows and mark come to be
together. Marks are a shortcut, never the truth: without them an import reads everything, and the keys say what is
there already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, and_, delete, exists, insert, select

from hypaware.state import tables

_sources, _pending = tables.sources, tables.pending_sources


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


def known(connection: Connection, provider: str, dataset: str) -> dict[str, SourceMark]:
    chosen = select(_sources).where(_sources.c.provider == provider, _sources.c.dataset == dataset)
    return {row["path"]: from_row(dict(row)) for row in connection.execute(chosen).mappings()}


def pend(connection: Connection, flush_id: str, marks: Iterable[SourceMark]) -> None:
    """What the flush will have taken, if it lands."""
    if values := [{**_values(mark), "flush_id": flush_id} for mark in marks]:
        connection.execute(insert(_pending), values)


def promote(connection: Connection, flush_id: str) -> None:
    """The flush landed: its marks count."""
    of_flush = _pending.c.flush_id == flush_id
    same = and_(*(_sources.c[name] == _pending.c[name] for name in ("provider", "dataset", "path")))
    connection.execute(delete(_sources).where(exists().where(of_flush, same)))
    names = [column.name for column in _sources.c]
    connection.execute(
        insert(_sources).from_select(names, select(*(_pending.c[name] for name in names)).where(of_flush))
    )
    discard(connection, flush_id)


def discard(connection: Connection, flush_id: str) -> None:
    connection.execute(delete(_pending).where(_pending.c.flush_id == flush_id))


def forget(connection: Connection, dataset: str) -> None:
    """The lake has lost rows of the dataset: every source is due again."""
    connection.execute(delete(_sources).where(_sources.c.dataset == dataset))


def from_row(row: Mapping[str, Any]) -> SourceMark:
    lists = {"held": tuple(orjson.loads(row["held"])), "left_out": tuple(map(tuple, orjson.loads(row["left_out"])))}
    return SourceMark(**{**row, **lists, "quiet": bool(row["quiet"])})


def _values(mark: SourceMark) -> dict[str, object]:
    return {
        **asdict(mark),
        "held": orjson.dumps(mark.held).decode(),
        "left_out": orjson.dumps(mark.left_out).decode(),
    }
