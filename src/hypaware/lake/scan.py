"""Full scans of data files, one task per file: keys for the key index, and checks of row ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hypaware.errors import Retryable
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.lake.build import BuildFailure, BuildResult
from hypaware.lake.parquet import read_batches, to_producer_rows
from hypaware.lake.row_keys import hash_key, hash_row_key
from hypaware.lake.table import LakeBackend, LakeTable
from hypaware.model import canonical, datasets
from hypaware.model.datasets import GATEWAY, ROW_ID, SEQ, Dataset

if TYPE_CHECKING:
    from pyspark import SparkContext

_FILES_PER_SCAN = 16


@dataclass(frozen=True)
class KeyScanTask:
    """Read the keys of a data file's rows above a sequence.

    `keys` are the dedupe keys, including those that settled rows had before. `match_keys` are read only on request.
    `reports` is `[True]` if there is a live row.
    """

    dataset: str
    path: Path
    after: int = 0
    own_gateway: str | None = None
    with_match_keys: bool = False

    def run(self) -> BuildResult:
        dataset, built = datasets.get(self.dataset), BuildResult()
        rules = dataset.match_rules
        columns = [SEQ, GATEWAY, dataset.key_column, *dataset.key_parts]
        if rules is not None:
            columns += [dataset.time_column, *rules.columns] if self.with_match_keys else [rules.marker_column]
        has_live = False
        for batch in read_batches(self.path, list(dict.fromkeys(columns))):
            for row in batch.to_pylist():
                if (seq := row[SEQ]) is None or seq <= self.after:
                    continue
                keys = [hash_row_key(dataset, row, self.own_gateway)]
                # Rows of other gateways were matched there.
                if rules is not None and self.own_gateway in (None, row.get(GATEWAY)):
                    keys += [hash_key(dataset.name, key) for key in rules.previous_keys(row)]
                    has_live = has_live or rules.may_be_live(row)
                    if self.with_match_keys:
                        built.match_keys.record(dataset, row, seq)
                for key in filter(None, keys):
                    built.seqs.append(seq)
                    built.keys += key
        built.reports = [has_live]
        return built


def scan_table_keys(
    home: Home, lake: LakeBackend, table: LakeTable, dataset: Dataset, after: int = 0, *, with_match_keys: bool = False
) -> Iterator[BuildResult]:
    """Yield the keys of all rows above a sequence, as `KeyScanTask` returns them, some files at a time."""
    entry = metadata.find_table(home, dataset.name)
    files = metadata.iter_cached_files(metadata.read_metadata(entry.metadata)) if entry else []
    paths = [file.path for file in files if file.max_seq is None or file.max_seq > after]
    for start in range(0, len(paths), _FILES_PER_SCAN):
        some = paths[start : start + _FILES_PER_SCAN]
        yield from scan_keys(lake, table, dataset, some, after, with_match_keys=with_match_keys)


def scan_keys(
    lake: LakeBackend,
    table: LakeTable,
    dataset: Dataset,
    paths: Sequence[Path],
    after: int = 0,
    *,
    with_match_keys: bool = False,
) -> Iterator[BuildResult]:
    tasks = [KeyScanTask(dataset.name, path, after, table.gateway_id, with_match_keys) for path in paths]
    for result in lake.run(tasks):
        if isinstance(result, BuildFailure):
            raise Retryable(f"{dataset.name}: could not read rows of the lake: {result.reason}", kind="scan_failed")
        yield result


@dataclass(frozen=True)
class RowIdCheck:
    checked: int
    missing: int
    wrong: int


def check_row_ids(spark: SparkContext, dataset: str, paths: Sequence[Path], max_rows: int | None = None) -> RowIdCheck:
    """Count the rows without a row id, and those whose id does not match their content, in each file's first rows."""
    if not paths:
        return RowIdCheck(0, 0, 0)
    check = partial(check_file_row_ids, dataset, max_rows=max_rows)
    found = spark.parallelize(paths, len(paths)).map(check).collect()
    return RowIdCheck(
        sum(each.checked for each in found), sum(each.missing for each in found), sum(each.wrong for each in found)
    )


def check_file_row_ids(name: str, path: Path, max_rows: int | None = None) -> RowIdCheck:
    dataset = datasets.get(name)
    checked = missing = wrong = 0
    for batch in read_batches(path, [ROW_ID, *(column.name for column in dataset.columns)]):
        for row in to_producer_rows(dataset, batch):
            row_id = row.pop(ROW_ID, None)
            checked += 1
            missing += row_id is None
            # A settled row has native columns but keeps the row id of its live row.
            settled = dataset.match_rules is not None and dataset.match_rules.previous_keys(row)
            wrong += row_id is not None and not settled and row_id != canonical.compute_row_id(row)
            if checked == max_rows:
                return RowIdCheck(checked, missing, wrong)
    return RowIdCheck(checked, missing, wrong)
