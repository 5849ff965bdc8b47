"""What imports have taken of each source file, so that an unchanged one is not opened and a grown one gives its news.

A mark is pending while its flush is under way and counts only when that flush is recorded: rows and mark come to be
together. Marks are a shortcut, never the truth: without them an import reads everything, and the keys say what is
there already.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, and_, delete, exists, insert, select

from hypaware.state import tables
from hypaware.state.source_mark import SourceMark, from_row, to_row

_sources, _pending = tables.sources, tables.pending_sources


def known(connection: Connection, provider: str, dataset: str) -> dict[str, SourceMark]:
    chosen = select(_sources).where(_sources.c.provider == provider, _sources.c.dataset == dataset)
    return {row["path"]: from_row(dict(row)) for row in connection.execute(chosen).mappings()}


def pend(connection: Connection, flush_id: str, marks: Iterable[SourceMark]) -> None:
    """What the flush will have taken, if it lands."""
    if values := [{**to_row(mark), "flush_id": flush_id} for mark in marks]:
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
