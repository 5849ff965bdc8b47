"""Checkpoints of source files, so that an import skips unchanged files and reads only the new part of others.

A checkpoint is pending while its flush runs and becomes valid when the flush is recorded, together with its rows.
Checkpoints only save time: without them an import reads everything, and the dedupe keys find the existing rows.
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
    """Store the checkpoints that become valid when the flush is committed."""
    if values := [{**to_row(mark), "flush_id": flush_id} for mark in marks]:
        connection.execute(insert(_pending), values)


def promote(connection: Connection, flush_id: str) -> None:
    """Make the checkpoints of a committed flush valid."""
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
    """Forget all checkpoints of a dataset, because the lake has lost rows. Every source is imported again."""
    connection.execute(delete(_sources).where(_sources.c.dataset == dataset))
