"""Rows of a table's files into the partitions of a new one, by what the rows themselves say. Runs in Spark's tasks.

A row that lies in several files (a rewritten one, and the file from before) is taken once: by its sequence.
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
    """The note of a `RegroupTask`."""

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
    """Flushes whose rows stay out: they did not land, or nobody knows, and the rows still wait where they came from."""

    def run(self) -> Built:
        dataset = datasets.get(self.dataset)
        schema = file_schema(dataset, self.field_ids)
        writers: dict[tuple[str, str], Writer] = {}
        rows_in = rows_out = highest = 0
        try:
            for rows in in_order(self.paths, schema):
                rows_in += rows.num_rows
                rows = _once(_landed(rows, self.without), highest)
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
        return Built(files=files, notes=[Regrouped(rows_out, rows_in - rows_out, highest)])


def _once(rows: pa.Table, after: int) -> pa.Table:
    """Sorted rows without those that repeat a sequence, or have one that was written already."""
    seqs = rows.column(SEQ).combine_chunks()
    fresh = pc.greater(seqs, after)
    if len(seqs) > 1:
        repeated = pc.equal(seqs.slice(1), seqs.slice(0, len(seqs) - 1))
        fresh = pc.and_(fresh, pc.invert(pa.concat_arrays([pa.array([False]), repeated])))
    return rows.filter(fresh)


def _landed(rows: pa.Table, without: frozenset[str]) -> pa.Table:
    if not without:
        return rows
    unsettled = pc.is_in(rows.column(BATCH_ID), value_set=pa.array(sorted(without), pa.string()))
    return rows.filter(pc.invert(unsettled))


def _partitions(rows: pa.Table, time_column: str) -> list[tuple[tuple[str, str], pa.Table]]:
    days = pc.strftime(rows.column(time_column), format="%Y-%m-%d")
    keyed = rows.select([SOURCE]).append_column("day", days)
    found = keyed.group_by([SOURCE, "day"]).aggregate([]).to_pylist()
    if len(found) == 1:
        return [((found[0][SOURCE], found[0]["day"]), rows)]
    parts = []
    for each in found:
        wanted = pc.and_(pc.equal(keyed.column(SOURCE), each[SOURCE]), pc.equal(days, each["day"]))
        parts.append(((each[SOURCE], each["day"]), rows.filter(wanted)))
    return parts


def unreadable(path: Path) -> str | None:
    """Why a file cannot be read to its end; all of it is read."""
    try:
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                file.read_row_group(group)
    except (OSError, pa.ArrowException) as error:
        return f"{type(error).__name__}: {error}"
    return None
