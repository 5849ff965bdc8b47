"""Checkpoints of source files, so that an import skips unchanged files and reads only the new part of others.

A checkpoint is pending while its flush runs and becomes valid when the flush is recorded, together with its rows.
Checkpoints only save time: without them an import reads everything, and the dedupe keys find the existing rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from hypaware.state.store import Connection


@dataclass(frozen=True)
class SourceCheckpoint:
    """How far a source file has been imported."""

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


_COLUMNS = ", ".join(field.name for field in fields(SourceCheckpoint))


def load_checkpoints(
    connection: Connection, provider: str, dataset: str, *, committed: Collection[str] = ()
) -> dict[str, SourceCheckpoint]:
    """Return the checkpoints of a provider by path.

    Includes the pending ones of the `committed` flushes, which are in the lake and not recorded yet.
    """
    parameters = {"provider": provider, "dataset": dataset}
    where = "WHERE provider = :provider AND dataset = :dataset"
    rows = connection.rows(f"SELECT * FROM sources {where}", parameters)
    for row in connection.rows(f"SELECT * FROM pending_sources {where}", parameters) if committed else ():
        if row.pop("flush_id") in committed:
            rows.append(row)
    return {row["path"]: checkpoint_from_row(row) for row in rows}


def add_pending_checkpoints(connection: Connection, flush_id: str, checkpoints: Iterable[SourceCheckpoint]) -> None:
    """Store the checkpoints that become valid when the flush is committed."""
    connection.insert("pending_sources", *({**checkpoint_to_row(each), "flush_id": flush_id} for each in checkpoints))


def promote_checkpoints(connection: Connection, flush_id: str) -> None:
    """Make the checkpoints of a committed flush valid."""
    connection.execute(
        "DELETE FROM sources WHERE EXISTS (SELECT 1 FROM pending_sources AS pending WHERE pending.flush_id = ?"
        " AND pending.provider = sources.provider AND pending.dataset = sources.dataset"
        " AND pending.path = sources.path)",
        (flush_id,),
    )
    connection.execute(
        f"INSERT INTO sources ({_COLUMNS}) SELECT {_COLUMNS} FROM pending_sources WHERE flush_id = ?", (flush_id,)
    )
    discard_checkpoints(connection, flush_id)


def discard_checkpoints(connection: Connection, flush_id: str) -> None:
    connection.execute("DELETE FROM pending_sources WHERE flush_id = ?", (flush_id,))


def forget_checkpoints(connection: Connection, dataset: str) -> None:
    """Forget all checkpoints of a dataset, because the lake has lost rows. Every source is imported again."""
    connection.execute("DELETE FROM sources WHERE dataset = ?", (dataset,))


def checkpoint_from_row(row: Mapping[str, Any]) -> SourceCheckpoint:
    lists = {"held": tuple(orjson.loads(row["held"])), "left_out": tuple(map(tuple, orjson.loads(row["left_out"])))}
    # A state that was not opened since the migration does not have this column yet.
    ignored = tuple(map(tuple, orjson.loads(row.get("ignored", b"[]"))))
    return SourceCheckpoint(**{**row, **lists, "quiet": bool(row["quiet"]), "ignored": ignored})


def checkpoint_to_row(checkpoint: SourceCheckpoint) -> dict[str, object]:
    lists = {name: orjson.dumps(getattr(checkpoint, name)).decode() for name in ("held", "left_out", "ignored")}
    return {**asdict(checkpoint), **lists, "quiet": int(checkpoint.quiet)}
