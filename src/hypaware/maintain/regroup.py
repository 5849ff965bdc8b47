"""Regrouping the rows of a table's files into the partitions of a new table, by the rows' own values. Runs in Spark
tasks.

A row present in several files (before and after a compaction) is written once, recognised by its sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hypaware.lake.arrow import file_schema
from hypaware.lake.build import Built
from hypaware.lake.partitions import Place
from hypaware.lake.rewrite import Writer, in_order
from hypaware.model import datasets
from hypaware.model.datasets import BATCH_ID, SEQ, SOURCE


@dataclass(frozen=True)
class Regrouped:
    """The result of a `RegroupTask`."""

    rows: int
    repeated: int
    max_seq: int


@dataclass(frozen=True)
class RegroupTask:
    dataset: str
    paths: tuple[Path, ...]
    place: Place
    field_ids: Mapping[str, int]
    without: frozenset[str] = frozenset()
    """Flushes whose rows are left out: they were not committed, or possibly not, and their rows are still in the spool.
    """

    def run(self) -> Built:
        dataset = datasets.get(self.dataset)
        schema = file_schema(dataset, self.field_ids)
        writers: dict[tuple[str, str], Writer] = {}
        rows_in = rows_out = highest = 0
        try:
            for rows in in_order(self.paths, schema):
                rows_in += rows.num_rows
                rows = _deduplicate(_exclude_flushes(rows, self.without), highest)
                rows_out += rows.num_rows
                highest = max(highest, pc.max(rows.column(SEQ)).as_py() or 0)
                for (source, day), part in _partitions(rows, dataset.time_column):
                    writer = writers.get((source, day))
                    if writer is None:
                        new_path = partial(self.place.new_file, dataset, source, day)
                        writer = writers[(source, day)] = Writer(new_path, schema)
                    writer.add(part)
            files = [file for (source, day), writer in writers.items() for file in writer.close(source, day)]
        except BaseException:
            for writer in writers.values():
                writer.discard()
            raise
        return Built(files=files, reports=[Regrouped(rows_out, rows_in - rows_out, highest)])


def _deduplicate(rows: pa.Table, after: int) -> pa.Table:
    """Drop sorted rows that repeat a sequence or have one that was already written."""
    seqs = rows.column(SEQ).combine_chunks()
    is_new = pc.greater(seqs, after)
    if len(seqs) > 1:
        repeated = pc.equal(seqs.slice(1), seqs.slice(0, len(seqs) - 1))
        is_new = pc.and_(is_new, pc.invert(pa.concat_arrays([pa.array([False]), repeated])))
    return rows.filter(is_new)


def _exclude_flushes(rows: pa.Table, without: frozenset[str]) -> pa.Table:
    if not without:
        return rows
    excluded = pc.is_in(rows.column(BATCH_ID), value_set=pa.array(sorted(without), pa.string()))
    return rows.filter(pc.invert(excluded))


def _partitions(rows: pa.Table, time_column: str) -> list[tuple[tuple[str, str], pa.Table]]:
    days = pc.strftime(rows.column(time_column), format="%Y-%m-%d")
    keyed = rows.select([SOURCE]).append_column("day", days)
    keys = keyed.group_by([SOURCE, "day"]).aggregate([]).to_pylist()
    if len(keys) == 1:
        return [((keys[0][SOURCE], keys[0]["day"]), rows)]
    parts = []
    for key in keys:
        in_partition = pc.and_(pc.equal(keyed.column(SOURCE), key[SOURCE]), pc.equal(days, key["day"]))
        parts.append(((key[SOURCE], key["day"]), rows.filter(in_partition)))
    return parts


def unreadable(path: Path) -> str | None:
    """Read the whole file; return the reason if that fails."""
    try:
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                file.read_row_group(group)
    except (OSError, pa.ArrowException) as error:
        return f"{type(error).__name__}: {error}"
    return None
