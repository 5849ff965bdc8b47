"""Pending settlements: native rows that match a live row of the lake, until a compaction applies them.

`lake/settlements/<dataset>/<flush id>-<first sequence>.parquet` contains the rows as a build wrote them, and in
`_hyp_settles` the sequence of the live row that each settles. A file is durable before its flush commits and is removed
if the flush is discarded, so without interrupted flushes all files are valid.

@ref keys#settlements
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hypaware import faults
from hypaware.errors import LakeError
from hypaware.home import Home, durable_files
from hypaware.home.storage import ObjectPath, arrow_source, is_durable, write_object
from hypaware.lake.health import settlements_folder
from hypaware.lake.parquet import to_producer_rows
from hypaware.model import datasets
from hypaware.model.datasets import GATEWAY, INTERNAL, SEQ, Dataset, Row, hash_row_key
from hypaware.state.flushes import Flush

_before_remove = faults.crash_point(
    "lake.settlements.before-remove", "settled rows are committed, their settlements still exist"
)
_after_remove = faults.crash_point("lake.settlements.after-remove", "applied settlements are removed")
TARGET_COLUMN = "_hyp_settles"


class DamagedSettlement(LakeError):
    """A settlement that cannot be read. Its rows come from transcripts, which can be imported again."""

    kind = "settlement_damaged"


def write_settlements(path: Path, built: Sequence[Path], settles: Mapping[int, int]) -> None:
    """Write the settling rows of built files with the sequence of the row that each settles. Runs in a task."""
    parts = []
    for file in built:
        rows = pq.read_table(arrow_source(file), partitioning=None)
        parts.append(rows.filter(pc.is_in(rows.column(SEQ), value_set=pa.array(settles, pa.int64()))))
    settling = pa.concat_tables(parts)
    targets = pa.array([settles[seq] for seq in settling.column(SEQ).to_pylist()], pa.int64())
    if not is_durable(path):
        durable_files.make_dir(path.parent.parent)
        durable_files.make_dir(path.parent)
    _store_settlements(path, settling.append_column(TARGET_COLUMN, targets))


def _store_settlements(path: Path, rows: pa.Table) -> None:
    if isinstance(path, ObjectPath):
        buffer = pa.BufferOutputStream()
        pq.write_table(rows, buffer, compression="zstd")
        write_object(path, buffer.getvalue().to_pybytes())
        return
    temporary = path.with_suffix(".tmp")
    pq.write_table(rows, temporary, compression="zstd")
    temporary.chmod(0o600)
    durable_files.fsync_file(temporary)
    durable_files.rename_durably(temporary, path)


def discard_settlements(home: Home, flush: Flush) -> None:
    """Remove the settlements of a flush that was not committed; its rows are built again."""
    found = list(settlements_folder(home, flush.dataset).glob(f"{flush.id}-*"))
    for path in found:
        path.unlink(missing_ok=True)
    if found and not is_durable(found[0]):
        durable_files.fsync_dir(settlements_folder(home, flush.dataset))


def remove_settlements(paths: Sequence[Path]) -> None:
    _before_remove()
    for path in paths:
        path.unlink(missing_ok=True)
    for parent in {path.parent for path in paths if not is_durable(path)}:
        durable_files.fsync_dir(parent)
    _after_remove()


def read_targets(dataset: Dataset, path: Path) -> dict[int, str]:
    """Return the sequences of the rows that a file settles, and the keys they will have."""
    found = _read_settlements(path, [TARGET_COLUMN, dataset.key_column])
    return dict(zip(found.column(TARGET_COLUMN).to_pylist(), found.column(dataset.key_column).to_pylist(), strict=True))


def read_settlement_keys(dataset: Dataset, path: Path, own_gateway: str | None) -> Iterator[tuple[bytes, int]]:
    """Yield the additional dedupe keys of the rows that a file settles, with their sequences."""
    wanted = dict.fromkeys([TARGET_COLUMN, GATEWAY, dataset.key_column, *dataset.key_parts])
    for row in _read_settlements(path, list(wanted)).to_pylist():
        if (key := hash_row_key(dataset, row, own_gateway)) is not None:
            yield key, row[TARGET_COLUMN]


def read_native_rows(dataset: Dataset, path: Path, wanted: Container[int]) -> list[Row]:
    """Return the native rows of some targets in producer form."""
    rows = _read_settlements(path)
    selected = pa.array([target in wanted for target in rows.column(TARGET_COLUMN).to_pylist()], pa.bool_())
    public = [column.name for column in dataset.columns if column.name in rows.column_names]
    return [
        row for batch in rows.filter(selected).select(public).to_batches() for row in to_producer_rows(dataset, batch)
    ]


def retain_targets(path: Path, kept: Container[int]) -> None:
    """Drop the settlements of all but some targets; the others were applied."""
    rows = _read_settlements(path)
    selected = pa.array([target in kept for target in rows.column(TARGET_COLUMN).to_pylist()], pa.bool_())
    _store_settlements(path, rows.filter(selected))


def _read_settlements(path: Path, columns: list[str] | None = None) -> pa.Table:
    try:
        return pq.read_table(arrow_source(path), columns=columns, partitioning=None)
    except (OSError, pa.ArrowException) as error:
        raise DamagedSettlement(f"{path} cannot be read: {error}") from error


@dataclass(frozen=True)
class SettlementPatch:
    """Applies settlements to rows that are rewritten. A plain value that is sent to tasks."""

    dataset: str
    paths: tuple[Path, ...]

    def apply(self, rows: pa.Table) -> pa.Table:
        """Return the rows, the settled ones with native columns and their own sequence."""
        seqs = rows.column(SEQ)
        native: dict[int, dict[str, Any]] = {}
        for path in filter(Path.exists, self.paths):
            stored = _read_settlements(path)
            settles = pc.is_in(stored.column(TARGET_COLUMN), value_set=seqs.combine_chunks())
            for row in stored.filter(settles).to_pylist():
                target = row.pop(TARGET_COLUMN)
                native.setdefault(target, {name: value for name, value in row.items() if name not in INTERNAL})
        if not native:
            return rows
        rules = datasets.get(self.dataset).match_rules
        assert rules is not None
        settled = pc.fill_null(pc.is_in(seqs, value_set=pa.array(native, pa.int64())), False)
        patched = [
            rules.settle(row, native[row[SEQ]]) if rules.may_be_live(row) else row
            for row in rows.filter(settled).to_pylist()
        ]
        others = rows.filter(pc.invert(settled))
        both = pa.concat_tables([others, pa.Table.from_pylist(patched, schema=rows.schema)])
        return both.take(pc.sort_indices(both.column(SEQ)))
