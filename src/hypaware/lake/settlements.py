"""Pending settlements: native rows that match a live row of the lake, until a compaction applies them.

`lake/settlements/<dataset>/<flush id>-<first sequence>.parquet` contains the rows as a build wrote them, and in
`_hyp_settles` the sequence of the live row that each settles. A file is durable before its flush commits and is removed
if the flush is discarded, so without interrupted flushes all files are valid. A settled row has its new id and its old
one, and is not settled again.

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

from hypaware import durable, faults
from hypaware.errors import LakeError
from hypaware.home import Home
from hypaware.lake.build import row_key
from hypaware.lake.coerced import coerced_rows
from hypaware.lake.settlement_files import folder
from hypaware.model import datasets
from hypaware.model.datasets import GATEWAY, INTERNAL, SEQ, Dataset, Row
from hypaware.state.flushes import Flush

_before_remove = faults.point(
    "lake.settlements.before-remove", "settled rows are committed, their settlements still exist"
)
_after_remove = faults.point("lake.settlements.after-remove", "applied settlements are removed")

TARGET = "_hyp_settles"


class Damaged(LakeError):
    """A settlement that cannot be read. Its rows come from transcripts, which can be imported again."""

    kind = "settlement_damaged"


def write(path: Path, rows: Sequence[pa.Table], settles: Mapping[int, int]) -> None:
    """Write rows of a build with the sequence of the row that each settles. Runs in a task."""
    settling = pa.concat_tables(rows)
    targets = pa.array([settles[seq] for seq in settling.column(SEQ).to_pylist()], pa.int64())
    durable.make_dir(path.parent.parent)
    durable.make_dir(path.parent)
    _store(path, settling.append_column(TARGET, targets))


def _store(path: Path, rows: pa.Table) -> None:
    temporary = path.with_suffix(".tmp")
    pq.write_table(rows, temporary, compression="zstd")
    temporary.chmod(0o600)
    durable.fsync_file(temporary)
    durable.rename(temporary, path)


def discard(home: Home, flush: Flush) -> None:
    """Remove the settlements of a flush that was not committed; its rows are built again."""
    found = list(folder(home, flush.dataset).glob(f"{flush.id}-*"))
    for path in found:
        path.unlink(missing_ok=True)
    if found:
        durable.fsync_dir(folder(home, flush.dataset))


def remove(paths: Sequence[Path]) -> None:
    """Remove applied settlements."""
    _before_remove()
    for path in paths:
        path.unlink(missing_ok=True)
    for parent in {path.parent for path in paths}:
        durable.fsync_dir(parent)
    _after_remove()


def targets(dataset: Dataset, path: Path) -> dict[int, str]:
    """Return the sequences of the rows that a file settles, and the keys they will have."""
    found = _read(path, [TARGET, dataset.key_column])
    return dict(zip(found.column(TARGET).to_pylist(), found.column(dataset.key_column).to_pylist(), strict=True))


def keys(dataset: Dataset, path: Path, own_gateway: str | None) -> Iterator[tuple[bytes, int]]:
    """Yield the additional dedupe keys of the rows that a file settles, with their sequences."""
    wanted = dict.fromkeys([TARGET, GATEWAY, dataset.key_column, *dataset.key_parts])
    for row in _read(path, list(wanted)).to_pylist():
        if (key := row_key(dataset, row, own_gateway)) is not None:
            yield key, row[TARGET]


def native_rows(dataset: Dataset, path: Path, wanted: Container[int]) -> list[Row]:
    """Return the native rows of some targets in producer form."""
    rows = _read(path)
    selected = pa.array([target in wanted for target in rows.column(TARGET).to_pylist()], pa.bool_())
    public = [column.name for column in dataset.columns if column.name in rows.column_names]
    return [row for batch in rows.filter(selected).select(public).to_batches() for row in coerced_rows(dataset, batch)]


def keep_only(path: Path, kept: Container[int]) -> None:
    """Drop the settlements of all but some targets; the others were applied."""
    rows = _read(path)
    selected = pa.array([target in kept for target in rows.column(TARGET).to_pylist()], pa.bool_())
    _store(path, rows.filter(selected))


def _read(path: Path, columns: list[str] | None = None) -> pa.Table:
    try:
        return pq.read_table(path, columns=columns, partitioning=None)
    except (OSError, pa.ArrowException) as error:
        raise Damaged(f"{path} cannot be read: {error}") from error


@dataclass(frozen=True)
class Amendment:
    """Applies settlements to rows that are rewritten. A plain value that is sent to tasks."""

    dataset: str
    paths: tuple[Path, ...]

    def apply(self, rows: pa.Table) -> pa.Table:
        """Return the rows, the settled ones with native columns and their own sequence."""
        seqs = rows.column(SEQ)
        native = self._native(seqs)
        if not native:
            return rows
        rules = datasets.get(self.dataset).match_rules
        assert rules is not None
        settled = pc.fill_null(pc.is_in(seqs, value_set=pa.array(native, pa.int64())), False)
        patched = [
            rules.settle(row, native[row[SEQ]]) if rules.match_keys(row) is not None else row
            for row in rows.filter(settled).to_pylist()
        ]
        others = rows.filter(pc.invert(settled))
        both = pa.concat_tables([others, pa.Table.from_pylist(patched, schema=rows.schema)])
        return both.take(pc.sort_indices(both.column(SEQ)))

    def _native(self, seqs: Any) -> dict[int, dict[str, Any]]:
        found: dict[int, dict[str, Any]] = {}
        for path in filter(Path.exists, self.paths):
            rows = _read(path)
            for row in rows.filter(pc.is_in(rows.column(TARGET), value_set=seqs.combine_chunks())).to_pylist():
                target = row.pop(TARGET)
                found.setdefault(target, {name: value for name, value in row.items() if name not in INTERNAL})
        return found
