"""Rewriting data files without the purged rows: one task per file, which accounts for all of its rows."""

from __future__ import annotations

from hypaware.errors import LakeError, Retryable
from hypaware.lake.build import BuildFailure, Built
from hypaware.lake.committer import LakeTable
from hypaware.lake.metadata import DataFile
from hypaware.lake.partitions import BuiltFile, Place
from hypaware.lake.rewrite import RewriteTask, Rewritten
from hypaware.maintain.purge.purging import Purging
from hypaware.maintain.purge.selection import Chosen
from hypaware.model.datasets import Dataset

_TASKS_AT_ONCE = 16


def without_rows(
    context: Purging, dataset: Dataset, table: LakeTable, files: list[tuple[DataFile, int]]
) -> list[BuiltFile]:
    """Write new files, not yet referenced, for (file, number of matching rows)."""
    field_ids, predicate = dict(table.field_ids), Chosen(context.selector, dataset.name)
    tasks = [
        RewriteTask(
            dataset.name,
            file.source,
            str(file.day),
            (file.path,),
            Place(table.data_root, context.id, file.min_seq or 0),
            field_ids,
            predicate,
        )
        for file, _ in files
    ]
    written: list[BuiltFile] = []
    try:
        for start in range(0, len(tasks), _TASKS_AT_ONCE):
            context.check_cancelled()
            context.progress(f"rewriting {dataset.name}", start, len(tasks))
            results = context.lake.run(tasks[start : start + _TASKS_AT_ONCE])
            for result, (file, rows) in zip(results, files[start:], strict=False):
                written += _checked(dataset, file, rows, result)
    except BaseException:
        for each in written:
            each.path.unlink(missing_ok=True)
        raise
    return written


def _checked(dataset: Dataset, file: DataFile, rows: int, result: Built | BuildFailure) -> list[BuiltFile]:
    """Check that exactly the rows that were found are left out."""
    if isinstance(result, BuildFailure):
        raise Retryable(f"{dataset.name}: could not rewrite {file.path.name}: {result.reason}", kind="purge_failed")
    (counts,) = result.reports
    assert isinstance(counts, Rewritten)
    if not counts.balanced or len(counts.dropped) != rows or counts.rows_in != file.rows:
        for each in result.files:
            each.path.unlink(missing_ok=True)
        raise LakeError(
            f"{dataset.name}: row counts of {file.path} do not match: expected {file.rows} rows, {rows} to remove; "
            f"read {counts.rows_in} rows, {len(counts.dropped)} to remove; nothing was changed",
            kind="purge_unbalanced",
        )
    return result.files
