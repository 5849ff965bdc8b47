"""Commit: the steps that flushes and imports share.

    open the table (recover) · reserve · prepare · commit · fsync · record · index the keys · remove segments

The caller holds the lake's lock (one JVM per home) and the table's commit lock. No other job reserves or commits
between our reservation and our record, and a job commits what it has reserved in the order of its reservations, so rows
become visible in the order of their sequences. An interrupted flush was either committed, and recovery records it, or
not, and recovery discards it. Checkpoints of an import are pending from the build on and take effect when the flush is
recorded.

@ref flush#recover @ref flush#commit @ref flush#record
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager

from hypaware import faults, telemetry
from hypaware.config.shared_lake import find_shared_lake
from hypaware.errors import HypError, Retryable
from hypaware.home import Home, durable_files
from hypaware.iceberg import fsync, metadata
from hypaware.lake import dedupe, health, prepare, settlements
from hypaware.lake.poison import ENGINE_DIED, PoisonRows, search_path
from hypaware.lake.prepare import PreparedFlush
from hypaware.lake.table import LakeBackend, LakeTable, NotCommitted, OpenTable
from hypaware.model.datasets import Dataset
from hypaware.model.row_counts import RowCounts
from hypaware.spool import segments
from hypaware.spool.received import open_received
from hypaware.state import flushes, mirror
from hypaware.state.flushes import Flush, FlushOutcome, SourceCheckpoint
from hypaware.state.store import StateStore

_after_reserve = faults.crash_point("lake.reserve.after-commit", "a sequence range is reserved, nothing is built")
_after_import_reserve = faults.crash_point(
    "lake.intake.after-reserve", "sequences are reserved for an import, nothing is read"
)
_after_pending = faults.crash_point(
    "lake.intake.after-pend", "the checkpoints of an import are pending, its rows are not committed"
)
_before_commit = faults.crash_point("lake.commit.before-commit", "the flush is built and deduplicated, not committed")
_after_commit = faults.crash_point(
    "lake.commit.after-commit", "the flush is in the lake, the state has not recorded it"
)
_after_record = faults.crash_point("lake.record.after-commit", "the flush is recorded, its segment files still exist")
_before_remove = faults.crash_point("lake.remove.before-unlink", "keys are indexed, the segment files still exist")
_after_remove = faults.crash_point("lake.remove.after-unlink", "the segment files and objects are removed")


@contextmanager
def open_table(home: Home, store: StateStore, lake: LakeBackend, dataset: Dataset) -> Iterator[OpenTable]:
    """Open a table for writing. Finish or discard interrupted flushes; refuse a lake older than its state."""
    durable_files.make_dir(home.lake)
    fsync.require_intact(home, dataset.name)
    with store.reading() as connection:
        recorded = flushes.highest_recorded_sequence(connection, dataset.name)
    health.check_floor(home, dataset.name, recorded)
    table = lake.table(dataset)
    # The last process may have died before its commit was durable; nothing may follow before it is.
    fsync.fsync_commit(home, dataset.name)
    finish_interrupted_flushes(home, store, table, dataset.name)
    with closing(dedupe.open_index(home, lake, table, dataset)) as index:
        yield OpenTable(home, store, lake, dataset, table, index)


@contextmanager
def reserve_segments(target: OpenTable, sizes: Sequence[tuple[str, int]]) -> Iterator[Flush]:
    """Reserve sequences for segments, given as (name, rows). Discard the flush if its preparation fails."""
    with target.store.transaction() as connection:
        flush = flushes.reserve_flush(connection, target.dataset.name, sizes, above=target.table.floor)
    _after_reserve()
    with discard_on_error(target, flush):
        yield flush


def reserve_import(target: OpenTable, max_rows: int) -> Flush:
    """Reserve sequences for the rows of an import, before anything is read. The caller discards the flush on errors.

    Several flushes may be reserved at a time. They must be committed in the order of their sequences.
    """
    with target.store.transaction() as connection:
        flush = flushes.reserve_range(connection, target.dataset.name, max_rows, above=target.table.floor)
    _after_import_reserve()
    return flush


@contextmanager
def discard_on_error(target: OpenTable, flush: Flush) -> Iterator[None]:
    """Discard the flush after an error. Poison rows count as a failed attempt of their segments.

    If the JVM has died, any row may be to blame.
    """
    try:
        yield
    except Exception as error:
        blamed: Collection[str] | None = error.segments if isinstance(error, PoisonRows) else ()
        if isinstance(error, HypError) and error.kind == ENGINE_DIED:
            blamed = None
        discard_flush(target.home, target.store, target.table, flush, blamed)
        raise


def commit_flush(
    target: OpenTable, flush: Flush, prepared: PreparedFlush, checkpoints: Sequence[SourceCheckpoint] | None = None
) -> FlushOutcome:
    """Commit the prepared rows and, for an import, the new checkpoints of its sources.

    Discards the flush only if it certainly was not committed. After any other error recovery checks the lake.
    """
    if checkpoints is not None:
        with discard_on_error(target, flush), target.store.transaction() as connection:
            flushes.add_pending_checkpoints(connection, flush.id, checkpoints)
        _after_pending()
    # Indexing the keys of a large import takes long: it runs in the background and takes effect after the record.
    with target.index.stage(
        prepared.keys, prepared.match_keys, prepared.matched, prepared.settled_keys, prepared.restored
    ) as commit_keys:
        _before_commit()
        if prepared.files:
            try:
                target.table.commit(flush, prepared.files)
            except NotCommitted:
                discard_flush(target.home, target.store, target.table, flush, blamed=())
                raise
        outcome = prepared.outcome()
        try:
            if prepared.files:
                _after_commit()
                fsync.fsync_commit(target.home, flush.dataset)
            record_flush(target.home, target.store, flush, outcome)
            _after_record()
            commit_keys(flush.dataset, target.table.uuid, target.table.floor)
            _before_remove()
            if flush.segments:
                remove_segments(target.home, target.store, flush)
            _after_remove()
        except OSError as error:
            # The rows are committed. The flush stays reserved, and recovery finishes it.
            raise Retryable(
                f"{flush.dataset}: rows are in the lake but not recorded ({error}); the next flush records them",
                kind="flush_unfinished",
            ) from error
    telemetry.count("hyp_rows_written", outcome.rows.written, hyp_dataset=flush.dataset)
    telemetry.count("hyp_rows_rejected", outcome.rows.rejected, hyp_dataset=flush.dataset)
    return outcome


def finish_interrupted_flushes(home: Home, store: StateStore, table: LakeTable, dataset: str) -> None:
    """Record or discard the interrupted flushes. The caller holds the lake's lock, so their process has ended."""
    with store.reading() as connection:
        interrupted = flushes.unfinished_flushes(connection, dataset)
    for flush in interrupted:
        if committed := table.find_flush(flush) or find_flush_files(home, flush):
            written, rejected = sum(rows for _, rows in committed.values()), prepare.count_rejects(home, flush)
            duplicates = max(0, sum(segment.rows for segment in flush.segments) - written - rejected)
            high_water = {source: highest for source, (highest, _) in committed.items()}
            record_flush(home, store, flush, FlushOutcome(high_water, RowCounts(written, duplicates, rejected)))
            if flush.segments:
                remove_segments(home, store, flush)
        else:
            discard_flush(home, store, table, flush)


def find_flush_files(home: Home, flush: Flush) -> dict[str, tuple[int, int]]:
    """Return source → (highest sequence, row count) of the flush's live files.

    Restored rows have sequences below the range of their flush, so a flush may have no rows in its range.
    """
    entry = metadata.find_table(home, flush.dataset)
    found: dict[str, tuple[int, int]] = {}
    for file in metadata.iter_cached_files(metadata.read_metadata(entry.metadata)) if entry else ():
        if file.path.name.startswith(f"{flush.id}-"):
            highest, rows = found.get(file.source, (0, 0))
            found[file.source] = (max(highest, file.max_seq or 0), rows + file.rows)
    return found


def record_flush(home: Home, store: StateStore, flush: Flush, outcome: FlushOutcome) -> None:
    keep = {} if find_shared_lake(home) is None else {"keep_segments": flushes.KEEP_OF_MEMBERS}
    with store.transaction() as connection:
        flushes.record_flush(connection, flush, outcome, **keep)
    mirror.write_mirror(home.mirror, store)


def remove_segments(home: Home, store: StateStore, flush: Flush) -> None:
    folder = segments.spool_folder(home, flush.dataset)
    committed = {segment.name for segment in flush.segments}
    for segment in segments.list_sealed_segments(folder):
        if segment.name in committed:
            segment.path.unlink(missing_ok=True)
    for name in committed:
        search_path(home, flush.dataset, name).unlink(missing_ok=True)
    durable_files.fsync_dir(folder.sealed)
    if received := open_received(home, store):
        received.remove_committed(flush.dataset)


def discard_flush(
    home: Home, store: StateStore, table: LakeTable, flush: Flush, blamed: Collection[str] | None = None
) -> None:
    """Discard a flush that was not committed. Its data files have its id in their names, and no table uses them."""
    files = list(table.data_root.glob(f"*/*/{flush.id}-*.parquet"))
    if (rejects := prepare.rejects_path(home, flush)).exists():
        durable_files.remove_durably(rejects)
    settlements.discard_settlements(home, flush)
    for path in files:
        path.unlink(missing_ok=True)
    with store.transaction() as connection:
        flushes.discard_flush(connection, flush, blamed=blamed)
