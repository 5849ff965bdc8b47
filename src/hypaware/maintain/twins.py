"""Twins: rows that have one dedupe key between them. Of those that are rewritten together, the lowest sequence stays.

A flush lets no twin in. If two came in all the same (a lost key index, two programs), compaction mends it where both
lie in files that one task reads. Only the columns of the key are read for that. A row without a key is never dropped,
nor is one whose sequence is not its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hypaware.lake.build import Built
from hypaware.lake.rewrite import RewriteTask, read_columns
from hypaware.model import datasets
from hypaware.model.datasets import GATEWAY, SEQ, Dataset

_KEY = "key"
_WHOSE = "whose"


@dataclass(frozen=True)
class TwinlessTask:
    """A rewriting that leaves later twins out."""

    rewriting: RewriteTask
    own_gateway: str | None
    """Whose home this is, as `build.row_key` asks."""

    def run(self) -> Built:
        dataset = datasets.get(self.rewriting.dataset)
        twins = later_twins(dataset, self.rewriting.paths, self.own_gateway)
        return (replace(self.rewriting, leave_out=Numbered(twins)) if twins else self.rewriting).run()


@dataclass(frozen=True)
class Numbered:
    """Leaves the rows with these sequences out."""

    seqs: tuple[int, ...]

    def rows(self, rows: pa.Table) -> Any:
        return pc.is_in(rows.column(SEQ), value_set=pa.array(self.seqs, pa.int64()))


def later_twins(dataset: Dataset, paths: Sequence[Path], own_gateway: str | None) -> tuple[int, ...]:
    """The sequences of all twins in the files but the lowest of each key."""
    keyed = pa.concat_tables([_keyed(dataset, path, own_gateway) for path in paths])
    known = keyed.filter(pc.is_valid(keyed.column(_KEY)))
    counted = known.group_by([_KEY, _WHOSE], use_threads=False).aggregate([(SEQ, "count")])
    repeated = counted.filter(pc.greater(counted.column(f"{SEQ}_count"), 1))
    if not repeated.num_rows:
        return ()
    suspects = known.filter(pc.is_in(known.column(_KEY), value_set=repeated.column(_KEY).combine_chunks())).to_pylist()
    lowest: dict[tuple[str, str | None], int] = {}
    for row in suspects:
        key = (row[_KEY], row[_WHOSE])
        lowest[key] = min(row[SEQ], lowest.get(key, row[SEQ]))
    later = [row[SEQ] for row in suspects if row[SEQ] != lowest[row[_KEY], row[_WHOSE]]]
    # By its sequence a row is left out, so one that shares it with another cannot be.
    at = Counter(keyed.filter(pc.is_in(keyed.column(SEQ), value_set=pa.array(later, pa.int64())))[SEQ].to_pylist())
    return tuple(sorted(seq for seq in later if at[seq] == 1))


def _keyed(dataset: Dataset, path: Path, own_gateway: str | None) -> pa.Table:
    """As `build.row_key` has it: sequence, key, and whose row it is, null for the home's own."""
    wanted = dict.fromkeys([SEQ, dataset.key_column, *dataset.key_parts])
    rows = read_columns(path, [*wanted, GATEWAY])
    key = _texts(rows, dataset.key_column)
    key = pc.if_else(pc.equal(key, ""), None, key)
    if dataset.key_parts:
        key = pc.coalesce(key, pc.binary_join_element_wise(*(_texts(rows, part) for part in dataset.key_parts), "#"))
    whose = _texts(rows, GATEWAY)
    ours = pc.equal(whose, own_gateway) if own_gateway is not None else pa.scalar(True)
    return pa.table({SEQ: rows.column(SEQ), _KEY: key, _WHOSE: pc.if_else(ours, None, whose)})


def _texts(rows: pa.Table, name: str) -> Any:
    """Null where the file is older than the column."""
    return rows.column(name).cast(pa.string()) if name in rows.column_names else pa.nulls(len(rows), pa.string())
