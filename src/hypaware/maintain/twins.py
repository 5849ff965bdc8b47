"""Duplicates: rows with the same dedupe key. Of duplicates that are rewritten together, the lowest sequence stays.

A flush lets no duplicate in. If two rows came in anyway (after the loss of the key index, or from two programs),
compaction removes the later one when one task reads both files. Only the key columns are read for this. A row without a
key is never removed, nor is one whose sequence is not unique.
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
_GATEWAY_KEY = "whose"


@dataclass(frozen=True)
class TwinlessTask:
    """A rewrite that leaves out later duplicates."""

    rewriting: RewriteTask
    own_gateway: str | None
    """The gateway of this home, as `build.row_key` expects it."""

    def run(self) -> Built:
        dataset = datasets.get(self.rewriting.dataset)
        duplicates = later_twins(dataset, self.rewriting.paths, self.own_gateway)
        return (replace(self.rewriting, exclude=Numbered(duplicates)) if duplicates else self.rewriting).run()


@dataclass(frozen=True)
class Numbered:
    """Leaves out the rows with these sequences."""

    seqs: tuple[int, ...]

    def select(self, rows: pa.Table) -> Any:
        return pc.is_in(rows.column(SEQ), value_set=pa.array(self.seqs, pa.int64()))


def later_twins(dataset: Dataset, paths: Sequence[Path], own_gateway: str | None) -> tuple[int, ...]:
    """Return the sequences of all duplicates in the files except the lowest of each key."""
    keyed = pa.concat_tables([_keyed(dataset, path, own_gateway) for path in paths])
    with_key = keyed.filter(pc.is_valid(keyed.column(_KEY)))
    counts = with_key.group_by([_KEY, _GATEWAY_KEY], use_threads=False).aggregate([(SEQ, "count")])
    repeated = counts.filter(pc.greater(counts.column(f"{SEQ}_count"), 1))
    if not repeated.num_rows:
        return ()
    candidates = with_key.filter(
        pc.is_in(with_key.column(_KEY), value_set=repeated.column(_KEY).combine_chunks())
    ).to_pylist()
    lowest: dict[tuple[str, str | None], int] = {}
    for row in candidates:
        key = (row[_KEY], row[_GATEWAY_KEY])
        lowest[key] = min(row[SEQ], lowest.get(key, row[SEQ]))
    later = [row[SEQ] for row in candidates if row[SEQ] != lowest[row[_KEY], row[_GATEWAY_KEY]]]
    # Rows are left out by sequence, so a row that shares its sequence with another has to stay.
    occurrences = Counter(
        keyed.filter(pc.is_in(keyed.column(SEQ), value_set=pa.array(later, pa.int64())))[SEQ].to_pylist()
    )
    return tuple(sorted(seq for seq in later if occurrences[seq] == 1))


def _keyed(dataset: Dataset, path: Path, own_gateway: str | None) -> pa.Table:
    """Return sequence, key and gateway of each row, as in `build.row_key`; the home's own gateway is null."""
    columns = dict.fromkeys([SEQ, dataset.key_column, *dataset.key_parts])
    rows = read_columns(path, [*columns, GATEWAY])
    key = _texts(rows, dataset.key_column)
    key = pc.if_else(pc.equal(key, ""), None, key)
    if dataset.key_parts:
        key = pc.coalesce(key, pc.binary_join_element_wise(*(_texts(rows, part) for part in dataset.key_parts), "#"))
    gateway = _texts(rows, GATEWAY)
    is_own = pc.equal(gateway, own_gateway) if own_gateway is not None else pa.scalar(True)
    return pa.table({SEQ: rows.column(SEQ), _KEY: key, _GATEWAY_KEY: pc.if_else(is_own, None, gateway)})


def _texts(rows: pa.Table, name: str) -> Any:
    """Return a column as text, null if the file is older than the column."""
    return rows.column(name).cast(pa.string()) if name in rows.column_names else pa.nulls(len(rows), pa.string())
