"""The Spark task of a rebuild: write rows into the partitions of a table, by the rows' own values.

Rows that another program deleted are left out. Rows without a sequence, which another program added, get one from a
reserved range, and the id of its flush. The task counts what it reads and writes, so that no row disappears unnoticed.

@ref keeping#rebuild
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hypaware.home.storage import arrow_source
from hypaware.lake import schema
from hypaware.lake.build import BuildResult, OutputPaths
from hypaware.lake.parquet import conform_rows, read_row_groups, to_producer_rows
from hypaware.lake.rewrite import RollingWriter, read_in_order, without_positions
from hypaware.model import canonical, datasets
from hypaware.model.datasets import BATCH_ID, INTERNAL, ROW_ID, SEQ, SOURCE, UNKNOWN_SOURCE, Dataset

Positions = Mapping[Path, tuple[int, ...]]
"""Data file → positions of rows that a delete file removes."""


@dataclass(frozen=True)
class RegroupBalance:
    """What happened to the rows of a task's files."""

    read: int
    written: int
    deleted: int
    excluded: int
    """Rows of flushes that were not committed."""
    repeated: int
    """Further copies of rows, in tables whose metadata is lost."""
    numbered: int
    """Rows that got a sequence; they are among the written ones."""

    @property
    def balanced(self) -> bool:
        return self.read == self.written + self.deleted + self.excluded + self.repeated


@dataclass(frozen=True)
class RegroupTask:
    """Writes the rows of files. Returns the new files and, as the only report, a `RegroupBalance`."""

    dataset: str
    paths: tuple[Path, ...]
    output: OutputPaths
    field_ids: Mapping[str, int]
    excluded_flushes: frozenset[str] = frozenset()
    """Flushes whose rows are left out: they were not committed, or possibly not, and are still in the spool."""
    deleted: Positions = field(default_factory=dict)
    may_repeat: bool = False
    """Whether a row may be in several files, before and after a compaction. It is then written once."""
    numbers: Mapping[Path, int] = field(default_factory=dict)
    """For each file with rows that have no sequence, the first of as many reserved ones."""
    flush_id: str = ""
    """The flush that reserved `numbers`."""

    def run(self) -> BuildResult:
        dataset = datasets.get(self.dataset)
        file_schema = schema.file_schema(dataset, self.field_ids)
        writers: dict[tuple[str, str], RollingWriter] = {}
        after_delete = excluded = repeated = highest = 0
        used: Counter[Path] = Counter()
        known: set[str] = set()

        def write(rows: pa.Table) -> None:
            rows = _fill_source(dataset, rows)
            for (source, day), part in _split_partitions(rows, dataset.time_column):
                if (source, day) not in writers:
                    writers[source, day] = RollingWriter(self.output, dataset, source, day, file_schema)
                writers[source, day].add(part)

        try:
            for rows in read_in_order(self.paths, file_schema, self.deleted):
                after_delete += rows.num_rows
                committed = self._without_excluded(rows)
                excluded += rows.num_rows - committed.num_rows
                rows = committed.filter(pc.is_valid(committed.column(SEQ)))
                if self.may_repeat:
                    new = _deduplicate(rows, highest)
                    repeated += rows.num_rows - new.num_rows
                    highest = max(highest, pc.max(new.column(SEQ)).as_py() or 0)
                    rows = new
                    if self.numbers:
                        known.update(rows.column(ROW_ID).to_pylist())
                write(rows)
            # Last, because their new sequences are the highest.
            for path, rows in _read_unnumbered(self.paths, file_schema, self.deleted):
                ids = _row_ids(dataset, rows)
                if self.may_repeat:
                    # An earlier rebuild has numbered this row, and its file was not removed yet.
                    is_new = [row_id not in known for row_id in ids]
                    repeated += is_new.count(False)
                    rows, ids = rows.filter(pa.array(is_new, pa.bool_())), [each for each in ids if each not in known]
                    known.update(ids)
                write(_number(rows, ids, self.numbers[path] + used[path], self.flush_id))
                used[path] += rows.num_rows
            files = [file for writer in writers.values() for file in writer.close()]
        except BaseException:
            for writer in writers.values():
                writer.discard()
            raise
        read = sum(pq.read_metadata(arrow_source(path)).num_rows for path in self.paths)
        written, deleted = sum(file.rows for file in files), read - after_delete
        balance = RegroupBalance(read, written, deleted, excluded, repeated, used.total())
        return BuildResult(files=files, reports=[balance])

    def _without_excluded(self, rows: pa.Table) -> pa.Table:
        if not self.excluded_flushes:
            return rows
        excluded = pa.array(sorted(self.excluded_flushes), pa.string())
        return rows.filter(pc.invert(pc.is_in(rows.column(BATCH_ID), value_set=excluded)))


def sum_balances(results: Iterable[BuildResult]) -> RegroupBalance:
    found = [report for result in results for report in result.reports]
    return RegroupBalance(*(sum(getattr(each, name) for each in found) for name in RegroupBalance.__dataclass_fields__))


def count_unnumbered(path: Path) -> int:
    """Return how many rows of a data file have no sequence."""
    groups = read_row_groups(path)
    if all(group.exact for group in groups):
        return sum(group.rows - group.sequenced for group in groups)
    return int(pq.read_table(arrow_source(path), columns=[SEQ]).column(SEQ).null_count)


def _read_unnumbered(
    paths: Iterable[Path], file_schema: pa.Schema, deleted: Positions
) -> Iterator[tuple[Path, pa.Table]]:
    for path in paths:
        if not count_unnumbered(path):
            continue
        with pq.ParquetFile(arrow_source(path)) as file:
            wanted = [name for name in file_schema.names if name in set(file.schema_arrow.names)]
            start = 0
            for group in read_row_groups(path):
                if group.sequenced < group.rows or not group.exact:
                    rows = file.read_row_group(group.index, columns=wanted, use_threads=False)
                    rows = conform_rows(without_positions(rows, deleted.get(path, ()), start), file_schema)
                    rows = rows.filter(pc.is_null(rows.column(SEQ)))
                    if rows.num_rows:
                        yield path, rows
                start += group.rows


def _row_ids(dataset: Dataset, rows: pa.Table) -> list[str]:
    public = rows.drop_columns(list(INTERNAL)).combine_chunks()
    return [canonical.compute_row_id(row) for batch in public.to_batches() for row in to_producer_rows(dataset, batch)]


def _number(rows: pa.Table, row_ids: list[str], first: int, flush_id: str) -> pa.Table:
    count = rows.num_rows
    values = {
        SEQ: pa.array(range(first, first + count), pa.int64()),
        ROW_ID: pa.array(row_ids, pa.string()),
        BATCH_ID: pa.array([flush_id] * count, pa.string()),
    }
    for name, column in values.items():
        index = rows.schema.get_field_index(name)
        rows = rows.set_column(index, rows.schema.field(index), column)
    return rows


def _fill_source(dataset: Dataset, rows: pa.Table) -> pa.Table:
    """Derive the source of rows that another program added without one."""
    if not rows.column(SOURCE).null_count:
        return rows
    candidates = (rows.column(name) for name in dataset.source_columns)
    filled = (pc.if_else(pc.equal(each, ""), None, each) for each in candidates)
    index = rows.schema.get_field_index(SOURCE)
    source = pc.coalesce(rows.column(SOURCE), *filled, pa.scalar(UNKNOWN_SOURCE))
    return rows.set_column(index, rows.schema.field(index), source)


def _deduplicate(rows: pa.Table, after: int) -> pa.Table:
    """Drop sorted rows that repeat a sequence or have one that was already written."""
    seqs = rows.column(SEQ).combine_chunks()
    is_new = pc.greater(seqs, after)
    if len(seqs) > 1:
        repeated = pc.equal(seqs.slice(1), seqs.slice(0, len(seqs) - 1))
        is_new = pc.and_(is_new, pc.invert(pa.concat_arrays([pa.array([False]), repeated])))
    return rows.filter(is_new)


def _split_partitions(rows: pa.Table, time_column: str) -> Iterator[tuple[tuple[str, str], pa.Table]]:
    days = pc.strftime(rows.column(time_column), format="%Y-%m-%d")
    keyed = rows.select([SOURCE]).append_column("day", days)
    keys = keyed.group_by([SOURCE, "day"]).aggregate([]).to_pylist()
    for key in keys:
        if key["day"] is None:
            raise ValueError(f"rows have no {time_column}, so they belong to no day; give them one first")
        in_partition = pc.and_(pc.equal(keyed.column(SOURCE), key[SOURCE]), pc.equal(days, key["day"]))
        yield (key[SOURCE], key["day"]), rows.filter(in_partition) if len(keys) > 1 else rows
