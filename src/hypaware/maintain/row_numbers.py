"""Give a sequence to rows that another program added to a table without one. Until then they are not delivered.

All such rows of a table get their sequences from one reservation, and the id of its flush. A process that dies before
the commit leaves a reserved flush, which recovery discards; one that dies after it leaves a flush that recovery finds
by its id and records. The rows are then above every watermark, so each sink receives them once.

@ref keeping#rebuild
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow as pa

from hypaware import faults
from hypaware.errors import LakeError
from hypaware.home import Home
from hypaware.iceberg import fsync, metadata
from hypaware.iceberg.metadata import FLOOR_PROPERTY, FLUSH_ID_PROPERTY, DataFile
from hypaware.lake import commit
from hypaware.lake.build import BuildFailure, BuildResult, BuiltFile, OutputPaths
from hypaware.lake.table import LakeBackend, LakeTable, NotCommitted, TableChange
from hypaware.maintain.regroup import RegroupTask, count_unnumbered, sum_balances
from hypaware.model.datasets import Dataset
from hypaware.model.row_counts import RowCounts
from hypaware.state import flushes
from hypaware.state.flushes import Flush, FlushOutcome
from hypaware.state.store import StateStore

_after_reserve = faults.crash_point(
    "maintain.number.after-reserve", "sequences are reserved for rows without one, nothing is written"
)
_before_commit = faults.crash_point(
    "maintain.number.before-commit", "files with the new sequences are written, the table has the old ones"
)
_after_commit = faults.crash_point(
    "maintain.number.after-commit", "rows have their new sequences, the state does not know"
)


def reserve_numbers(
    store: StateStore, dataset: str, paths: Iterable[Path], floor: int
) -> tuple[Flush | None, dict[Path, int]]:
    """Reserve sequences for all rows of the files that have none, in one range above the floor.

    Return the flush, or None if every row has a sequence, and the first new sequence of each file.
    """
    counts = {path: count for path in paths if (count := _count_readable(path))}
    if not counts:
        return None, {}
    with store.transaction() as connection:
        flush = flushes.reserve_range(connection, dataset, sum(counts.values()), above=floor)
    _after_reserve()
    numbers, first = {}, flush.after + 1
    for path, count in counts.items():
        numbers[path] = first
        first += count
    return flush, numbers


def _count_readable(path: Path) -> int:
    try:
        return count_unnumbered(path)
    except (OSError, pa.ArrowException):
        return 0  # the task that reads the file reports it


def record_numbers(home: Home, store: StateStore, flush: Flush, numbered: int, built: Iterable[BuiltFile]) -> None:
    """Record that the numbered rows are in the lake, so that deliveries find them."""
    high_water: defaultdict[str, int] = defaultdict(int)
    for file in built:
        if file.max_seq > flush.after:
            high_water[file.source] = max(high_water[file.source], file.max_seq)
    commit.record_flush(home, store, flush, FlushOutcome(high_water, RowCounts(written=numbered)))


def number_rows(home: Home, store: StateStore, lake: LakeBackend, table: LakeTable, dataset: Dataset) -> int:
    """Rewrite the files that hold rows without a sequence, and return the number of rows that got one.

    The caller holds both locks of the table, and the table has no delete files.
    """
    entry = metadata.find_table(home, dataset.name)
    assert entry is not None
    files = [file for file in metadata.iter_live_files(metadata.read_metadata(entry.metadata)) if _may_lack(file)]
    fsync.fsync_commit(home, dataset.name)
    flush, numbers = reserve_numbers(store, dataset.name, [file.path for file in files], table.floor)
    if flush is None:
        return 0
    affected = [file for file in files if file.path in numbers]
    try:
        results = _rewrite(lake, table, dataset, affected, flush, numbers)
        balance = sum_balances(results)
        built = [file for result in results for file in result.files]
        if not balance.balanced or not balance.read == balance.written == sum(file.rows for file in affected):
            raise LakeError(f"table {dataset.name}: row counts do not match, so nothing was changed: {balance}")
        _before_commit()
        properties, summary = {FLOOR_PROPERTY: str(flush.last)}, {FLUSH_ID_PROPERTY: flush.id}
        table.replace_files(TableChange("rebuild", affected, built, properties, summary))
    except (LakeError, NotCommitted):
        commit.discard_flush(home, store, table, flush, blamed=())
        raise
    _after_commit()
    fsync.fsync_commit(home, dataset.name)
    record_numbers(home, store, flush, balance.numbered, built)
    return balance.numbered


def _may_lack(file: DataFile) -> bool:
    """Return whether rows of the file may lack a sequence. Without statistics they may."""
    return file.sequenced < file.rows or file.max_seq is None


def _rewrite(
    lake: LakeBackend,
    table: LakeTable,
    dataset: Dataset,
    files: Iterable[DataFile],
    flush: Flush,
    numbers: Mapping[Path, int],
) -> list[BuildResult]:
    # Named after the flush, so that a discarded flush removes its files.
    output, field_ids = OutputPaths(table.data_root, flush.id, flush.after + 1), dict(table.field_ids)
    tasks = [
        RegroupTask(dataset.name, (file.path,), output, field_ids, numbers=numbers, flush_id=flush.id) for file in files
    ]
    results = []
    for result in lake.run(tasks):
        if isinstance(result, BuildFailure):
            raise LakeError(
                f"table {dataset.name}: rows could not be numbered: {result.reason}", kind="lake_unreadable"
            )
        results.append(result)
    return results
