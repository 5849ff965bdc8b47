"""Writing data files again without the rows that are meant: a task for each file, which accounts for all its rows."""

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
    purging: Purging, dataset: Dataset, table: LakeTable, partly: list[tuple[DataFile, int]]
) -> list[BuiltFile]:
    """New files that nothing names yet, for (file, how many of its rows are meant)."""
    field_ids, chosen = dict(table.field_ids), Chosen(purging.selector, dataset.name)
    work = [
        RewriteTask(
            dataset.name,
            file.source,
            str(file.day),
            (file.path,),
            Place(table.data_root, purging.id, file.min_seq or 0),
            field_ids,
            chosen,
        )
        for file, _ in partly
    ]
    written: list[BuiltFile] = []
    try:
        for start in range(0, len(work), _TASKS_AT_ONCE):
            purging.check_cancelled()
            purging.progress(f"rewriting {dataset.name}", start, len(work))
            results = purging.lake.run(work[start : start + _TASKS_AT_ONCE])
            for result, (file, rows) in zip(results, partly[start:], strict=False):
                written += _checked(dataset, file, rows, result)
    except BaseException:
        for each in written:
            each.path.unlink(missing_ok=True)
        raise
    return written


def _checked(dataset: Dataset, file: DataFile, rows: int, result: Built | BuildFailure) -> list[BuiltFile]:
    """Nothing but the rows that were found is missing."""
    if isinstance(result, BuildFailure):
        raise Retryable(f"{dataset.name}: writing {file.path.name} again failed: {result.reason}", kind="purge_failed")
    (told,) = result.notes
    assert isinstance(told, Rewritten)
    if not told.balanced or len(told.left_out) != rows or told.rows_in != file.rows:
        for each in result.files:
            each.path.unlink(missing_ok=True)
        raise LakeError(
            f"{dataset.name}: {file.path} holds {file.rows} rows, {rows} of them meant, and was read with "
            f"{told.rows_in} and {len(told.left_out)}; nothing was changed",
            kind="purge_unbalanced",
        )
    return result.files
