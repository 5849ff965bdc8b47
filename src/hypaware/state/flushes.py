"""Sequences, segments, flushes and the checkpoints of source files: the steps of a flush that the state records.

A flush is `reserved`, then `committed` or `burnt`. Its range (after, last] is never reused. A segment is `waiting` (an
earlier flush of it failed), `reserved` by a flush, or `committed`. A segment without a record is waiting too. The high
water of a dataset and source is its highest recorded sequence.

A checkpoint lets an import skip an unchanged source file and read only the new part of others. It is pending while its
flush runs and becomes valid when the flush is recorded, together with its rows. Checkpoints only save time: without
them an import reads everything, and the dedupe keys find the existing rows.

@ref flush#sequence
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import orjson

from hypaware.errors import StateCorrupt, StateError
from hypaware.model.row_counts import RowCounts
from hypaware.state import received, streams
from hypaware.state.schema import utc_now

if TYPE_CHECKING:
    from hypaware.state.store import Connection

# Far below the 64-bit limit, so that one faulty import cannot use up the sequences of a home.
_MAX_SEQUENCE = 2**62
# How long finished segments and flushes are kept, in case a segment file reappears.
_KEEP_FINISHED = timedelta(days=30)
# Another machine may have finished the flush, and the one that has the file may be off for long.
KEEP_OF_MEMBERS = timedelta(days=366)
_LOOKUP_SIZE = 500


@dataclass(frozen=True)
class ReservedSegment:
    name: str
    base: int
    rows: int
    attempts: int


@dataclass(frozen=True)
class Flush:
    id: str
    dataset: str
    after: int
    last: int
    segments: tuple[ReservedSegment, ...]


@dataclass(frozen=True)
class FlushOutcome:
    """The result of a flush, as `record_flush` stores it."""

    high_water: Mapping[str, int]
    rows: RowCounts
    """Settled and purged rows are reported, but not stored."""


@dataclass(frozen=True)
class SourcePin:
    """What was about to be recorded from a source: its bytes up to `size`, read with these settings.

    The daemon stores it before it appends the rows to the spool. If it dies before the next checkpoint, the next read
    makes the same rows again, whatever was written to the source in between; otherwise a response that was cut in
    different places could count its tokens twice.
    """

    size: int
    mtime_ns: int
    quiet: bool
    released: tuple[str, ...] = ()
    """Unfinished messages that were not held back any longer."""


@dataclass(frozen=True)
class SourceCheckpoint:
    """The position up to which a source file has been imported."""

    provider: str
    dataset: str
    path: str
    inode: int
    size: int
    mtime_ns: int
    consumed: int
    """Lines that begin before this offset were imported, except for those of the `held` messages."""
    prefix_hash: str
    """The hash of the bytes before `consumed`; the cursor of a database."""
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
    pin: SourcePin | None = None
    """The next part, if it may already be in the spool."""
    machine: str = ""
    """The member of a shared lake that has the file; empty in a lake of its own."""


_COLUMNS = ", ".join(field.name for field in fields(SourceCheckpoint))
_ONE_SOURCE = "machine = ? AND provider = ? AND dataset = ? AND path = ?"


def next_sequence(connection: Connection) -> int:
    found = next_sequence_or_none(connection)
    if found is None:
        raise StateCorrupt("the state has no sequence allocator")
    return found


def next_sequence_or_none(connection: Connection) -> int | None:
    """Return the next sequence, or None if the allocator is empty, which must never be read as 1."""
    found: int | None = connection.value("SELECT next_seq FROM allocator WHERE name = 'seq'")
    return found


def raise_next_sequence(connection: Connection, at_least: int) -> None:
    if next_sequence_or_none(connection) is None:
        connection.insert("allocator", {"name": "seq", "next_seq": at_least})
    connection.execute("UPDATE allocator SET next_seq = :at_least WHERE next_seq < :at_least", {"at_least": at_least})


def skip_sequences(connection: Connection, over: int) -> None:
    """Skip a range of sequences, which the home that this one was copied from will allocate."""
    base = next_sequence(connection)
    if base + over > _MAX_SEQUENCE:
        raise StateError(
            f"cannot skip {over} sequences: {base} is the next one and {_MAX_SEQUENCE} the last. This home can be "
            "moved, but not copied any more"
        )
    raise_next_sequence(connection, base + over)


def reserve_flush(
    connection: Connection, dataset: str, segments: Sequence[tuple[str, int]], *, above: int = 0
) -> Flush:
    """Reserve a range for the (name, rows) segments, higher than `above`, the floor of the lake's table.

    The attempt is counted here, so that a crash counts as an attempt.
    """
    base = max(next_sequence(connection), above + 1)
    attempts, flush_id = segment_attempts(connection, dataset), str(uuid.uuid4())
    common = {"flush_id": flush_id, "status": "reserved", "updated_at": utc_now()}
    reserved, records, start = [], {}, base
    for name, rows in segments:
        reserved.append(ReservedSegment(name, start, rows, attempts.get(name, 0) + 1))
        records[name] = {**common, "seq_base": start, "row_count": rows, "attempts": attempts.get(name, 0) + 1}
        start += rows
    flush = Flush(flush_id, dataset, base - 1, start - 1, tuple(reserved))
    _insert_flush(connection, flush)
    _insert_segments(connection, dataset, records)
    return flush


def reserve_range(connection: Connection, dataset: str, size: int, *, above: int = 0) -> Flush:
    """Reserve `size` sequences, higher than `above`, for rows without a segment. Some may stay unused."""
    base = max(next_sequence(connection), above + 1)
    if base + size > _MAX_SEQUENCE:
        raise StateError(
            f"{dataset}: cannot reserve {size} sequences: {base} is the next one and {_MAX_SEQUENCE} the last"
        )
    flush = Flush(str(uuid.uuid4()), dataset, base - 1, base - 1 + size, ())
    _insert_flush(connection, flush)
    return flush


def _insert_flush(connection: Connection, flush: Flush) -> None:
    values = {"seq_after": flush.after, "seq_last": flush.last, "status": "reserved", "reserved_at": utc_now()}
    connection.insert("flushes", {"id": flush.id, "dataset": flush.dataset, **values})
    raise_next_sequence(connection, flush.last + 1)


def _insert_segments(connection: Connection, dataset: str, segments: Mapping[str, Mapping[str, object]]) -> None:
    """Insert or replace the records of segments, given by name."""
    for name in segments:
        connection.execute("DELETE FROM segments WHERE dataset = ? AND name = ?", (dataset, name))
    connection.insert("segments", *({"dataset": dataset, "name": name, **row} for name, row in segments.items()))


def unfinished_flushes(connection: Connection, dataset: str | None = None) -> list[Flush]:
    """Return the flushes that are reserved and neither committed nor burnt, oldest first."""
    rows = connection.rows(
        "SELECT id, dataset, seq_after AS after, seq_last AS last FROM flushes"
        " WHERE status = 'reserved' AND dataset = coalesce(?, dataset) ORDER BY seq_after",
        (dataset,),
    )
    found = []
    for row in rows:
        segments = connection.rows(
            "SELECT name, seq_base AS base, row_count AS rows, attempts FROM segments"
            " WHERE flush_id = ? ORDER BY seq_base",
            (row["id"],),
        )
        found.append(Flush(**row, segments=tuple(ReservedSegment(**segment) for segment in segments)))
    return found


def uncommitted_flush_ids(connection: Connection, dataset: str) -> set[str]:
    """Return the ids of flushes that are not recorded as committed: reserved and burnt ones."""
    return set(connection.values("SELECT id FROM flushes WHERE dataset = ? AND status <> 'committed'", (dataset,)))


def discarded_flush_ids(connection: Connection, dataset: str) -> set[str]:
    """Return the ids of flushes that are recorded as not committed."""
    return set(connection.values("SELECT id FROM flushes WHERE dataset = ? AND status = 'burnt'", (dataset,)))


def discard_flush(connection: Connection, flush: Flush, *, blamed: Iterable[str] | None = None) -> None:
    """Record that a flush was not committed: its range stays unused and its segments are waiting again.

    The attempt counts only for the `blamed` segments. None means that the cause is unknown, so it counts for all.
    """
    now = utc_now()
    _finish_flush(connection, flush, status="burnt", finished_at=now)
    discard_checkpoints(connection, flush.id)
    streams.discard_watermarks(connection, flush.id)
    if blamed is not None:
        for name in {segment.name for segment in flush.segments} - set(blamed):
            connection.execute(
                "UPDATE segments SET attempts = attempts - 1 WHERE flush_id = ? AND name = ?", (flush.id, name)
            )
    connection.execute(
        "UPDATE segments SET status = 'waiting', flush_id = NULL, seq_base = NULL, updated_at = ? WHERE flush_id = ?",
        (now, flush.id),
    )


def record_flush(
    connection: Connection, flush: Flush, outcome: FlushOutcome, *, keep_segments: timedelta = _KEEP_FINISHED
) -> None:
    """Record that a flush was committed, or had no rows: finish its segments and raise its high water.

    Records of committed segments are deleted after `keep_segments`.
    """
    now = utc_now()
    _finish_flush(
        connection,
        flush,
        status="committed",
        finished_at=now,
        rows_written=outcome.rows.written,
        rows_duplicate=outcome.rows.duplicate,
        rows_rejected=outcome.rows.rejected,
    )
    connection.execute("UPDATE segments SET status = 'committed', updated_at = ? WHERE flush_id = ?", (now, flush.id))
    received.forget_committed_files(connection)
    raise_high_water(connection, flush.dataset, outcome.high_water)
    promote_checkpoints(connection, flush.id)
    streams.promote_watermarks(connection, flush.id)
    present = datetime.now(UTC)
    # An object that could not be removed all this time would be committed again.
    connection.execute(
        "DELETE FROM segments WHERE status = 'committed' AND updated_at < ? AND NOT EXISTS (SELECT 1 FROM received"
        " WHERE received.dataset = segments.dataset AND received.segment = segments.name)",
        ((present - keep_segments).isoformat(),),
    )
    # One commit of each day stays: these days tell whether the clock can be trusted.
    connection.execute(
        "DELETE FROM flushes WHERE finished_at < ? AND (status = 'burnt' OR status = 'committed' AND id NOT IN"
        " (SELECT max(id) FROM flushes WHERE status = 'committed' GROUP BY substr(finished_at, 1, 10)))",
        ((present - _KEEP_FINISHED).isoformat(),),
    )


def _finish_flush(connection: Connection, flush: Flush, **values: object) -> None:
    """Change the status of a reserved flush, once: a committed flush is never burnt, and vice versa."""
    changes = ", ".join(f"{name} = :{name}" for name in values)
    sql = f"UPDATE flushes SET {changes} WHERE id = :id AND status = 'reserved'"
    if connection.execute(sql, {**values, "id": flush.id}) != 1:
        raise StateError(f"flush {flush.id} of {flush.dataset} is not reserved any more")


def mark_segments_committed(connection: Connection, dataset: str, names: Iterable[str]) -> None:
    """Mark segments whose rows are in the lake, when the state is rebuilt."""
    record = {"row_count": 0, "status": "committed", "attempts": 0, "updated_at": utc_now()}
    _insert_segments(connection, dataset, dict.fromkeys(names, record))


def committed_segments(connection: Connection, dataset: str, names: Iterable[str]) -> set[str]:
    """Return those of the named segments whose rows are in the lake, so that only their files remain."""
    wanted, found = sorted(set(names)), set[str]()
    for some in (wanted[start : start + _LOOKUP_SIZE] for start in range(0, len(wanted), _LOOKUP_SIZE)):
        markers = ", ".join("?" * len(some))
        sql = f"SELECT name FROM segments WHERE dataset = ? AND status = 'committed' AND name IN ({markers})"
        found.update(connection.values(sql, (dataset, *some)))
    return found


def segment_attempts(connection: Connection, dataset: str) -> dict[str, int]:
    """Return how often each waiting segment has failed."""
    sql = "SELECT name, attempts FROM segments WHERE dataset = ? AND status = 'waiting'"
    return {row["name"]: row["attempts"] for row in connection.rows(sql, (dataset,))}


def load_high_water(connection: Connection, dataset: str | None = None) -> dict[str, dict[str, int]]:
    """Return the high water by dataset and source."""
    found: dict[str, dict[str, int]] = {}
    sql = "SELECT dataset, source, seq FROM high_water WHERE dataset = coalesce(?, dataset)"
    for row in connection.rows(sql, (dataset,)):
        found.setdefault(row["dataset"], {})[row["source"]] = row["seq"]
    return found


def highest_recorded_sequence(connection: Connection, dataset: str) -> int:
    """Return the highest recorded sequence of the dataset, or 0."""
    return connection.value("SELECT max(seq) FROM high_water WHERE dataset = ?", (dataset,)) or 0


def raise_high_water(connection: Connection, dataset: str, by_source: Mapping[str, int]) -> None:
    known = load_high_water(connection, dataset).get(dataset, {})
    for source, seq in by_source.items():
        values = {"dataset": dataset, "source": source, "seq": seq}
        if source not in known:
            connection.insert("high_water", values)
        elif seq > known[source]:
            connection.execute("UPDATE high_water SET seq = :seq WHERE dataset = :dataset AND source = :source", values)


def lower_high_water(connection: Connection, dataset: str, floor: int) -> None:
    """Lower the high water to the floor of a lake that was rolled back, after the user accepted the loss.

    Sequences are not reused. The import checkpoints are forgotten, so that imports can read the lost rows again.
    """
    forget_checkpoints(connection, dataset)
    sql = "UPDATE high_water SET seq = :floor WHERE dataset = :dataset AND seq > :floor"
    connection.execute(sql, {"dataset": dataset, "floor": floor})


def last_flush_at(connection: Connection, dataset: str | None = None) -> datetime | None:
    sql = "SELECT max(finished_at) FROM flushes WHERE status = 'committed' AND dataset = coalesce(?, dataset)"
    found = connection.value(sql, (dataset,))
    return datetime.fromisoformat(found) if found else None


def commit_times(connection: Connection) -> list[datetime]:
    """Return the time of the last recorded commit of each day, in any dataset."""
    sql = "SELECT max(finished_at) FROM flushes WHERE status = 'committed' GROUP BY substr(finished_at, 1, 10)"
    return [datetime.fromisoformat(found) for found in connection.values(sql)]


def first_commit_above(connection: Connection, dataset: str, seq: int) -> datetime | None:
    """Return when the first rows above the sequence were committed, as far back as the state records it."""
    found = connection.value(
        "SELECT min(finished_at) FROM flushes"
        " WHERE dataset = ? AND status = 'committed' AND seq_last > ? AND rows_written > 0",
        (dataset, seq),
    )
    return datetime.fromisoformat(found) if found else None


def load_checkpoints(
    connection: Connection, provider: str, dataset: str, *, machine: str = "", committed: Collection[str] = ()
) -> dict[str, SourceCheckpoint]:
    """Return the checkpoints of a provider on a machine by path.

    Includes the pending ones of the `committed` flushes, which are in the lake and not recorded yet.
    """
    parameters = {"provider": provider, "dataset": dataset}
    where = "WHERE provider = :provider AND dataset = :dataset"
    if machine:
        # Otherwise all are of this machine. A state that was not opened since the migration does not have this column.
        parameters["machine"], where = machine, f"{where} AND machine = :machine"
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
        " AND pending.machine = sources.machine AND pending.provider = sources.provider"
        " AND pending.dataset = sources.dataset AND pending.path = sources.path)",
        (flush_id,),
    )
    connection.execute(
        f"INSERT INTO sources ({_COLUMNS}) SELECT {_COLUMNS} FROM pending_sources WHERE flush_id = ?", (flush_id,)
    )
    discard_checkpoints(connection, flush_id)


def discard_checkpoints(connection: Connection, flush_id: str) -> None:
    connection.execute("DELETE FROM pending_sources WHERE flush_id = ?", (flush_id,))


def load_checkpoint(
    connection: Connection, provider: str, dataset: str, path: str, machine: str = ""
) -> SourceCheckpoint | None:
    row = connection.row(f"SELECT * FROM sources WHERE {_ONE_SOURCE}", (machine, provider, dataset, path))
    return checkpoint_from_row(row) if row else None


def has_pending_checkpoint(connection: Connection, provider: str, dataset: str, path: str, machine: str = "") -> bool:
    """Return whether an interrupted import may still replace the checkpoint of the source."""
    found = connection.value(f"SELECT 1 FROM pending_sources WHERE {_ONE_SOURCE}", (machine, provider, dataset, path))
    return found is not None


def store_checkpoint(connection: Connection, checkpoint: SourceCheckpoint) -> None:
    """Store a checkpoint whose rows are in the spool. The caller holds the lock on the sources."""
    connection.execute(
        f"DELETE FROM sources WHERE {_ONE_SOURCE}",
        (checkpoint.machine, checkpoint.provider, checkpoint.dataset, checkpoint.path),
    )
    connection.insert("sources", checkpoint_to_row(checkpoint))


def list_checkpoints(connection: Connection, dataset: str, machine: str = "") -> list[SourceCheckpoint]:
    """Return the checkpoints of all providers on a machine."""
    sql = "SELECT * FROM sources WHERE dataset = ? AND machine = ?"
    return list(map(checkpoint_from_row, connection.rows(sql, (dataset, machine))))


def forget_checkpoints(connection: Connection, dataset: str) -> None:
    """Forget the checkpoints of a dataset, of all machines, so that the sources are imported again."""
    connection.execute("DELETE FROM sources WHERE dataset = ?", (dataset,))


def forget_checkpoint(connection: Connection, checkpoint: SourceCheckpoint) -> None:
    """Forget the checkpoints of one file, so that it is imported again."""
    connection.execute(
        "DELETE FROM sources WHERE dataset = ? AND machine = ? AND path = ?",
        (checkpoint.dataset, checkpoint.machine, checkpoint.path),
    )


def checkpoint_from_row(row: Mapping[str, Any]) -> SourceCheckpoint:
    lists = {"held": tuple(orjson.loads(row["held"])), "left_out": tuple(map(tuple, orjson.loads(row["left_out"])))}
    # A state that was not opened since the migration does not have this column yet.
    ignored = tuple(map(tuple, orjson.loads(row.get("ignored", b"[]"))))
    pin = orjson.loads(row["pin"]) if row.get("pin") else None
    if pin is not None:
        pin = SourcePin(**{**pin, "released": tuple(pin["released"])})
    return SourceCheckpoint(**{**row, **lists, "quiet": bool(row["quiet"]), "ignored": ignored, "pin": pin})


def checkpoint_to_row(checkpoint: SourceCheckpoint) -> dict[str, object]:
    lists = {name: orjson.dumps(getattr(checkpoint, name)).decode() for name in ("held", "left_out", "ignored")}
    pin = orjson.dumps(asdict(checkpoint.pin)).decode() if checkpoint.pin else None
    return {**asdict(checkpoint), **lists, "quiet": int(checkpoint.quiet), "pin": pin}
