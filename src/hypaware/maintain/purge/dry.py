"""The dry run of a purge: count the rows that it would remove, in this process, without Spark and without changes."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa

from hypaware.errors import LakeError
from hypaware.home import Home
from hypaware.lake import metadata, standing
from hypaware.maintain.purge import at_work, copies, letters, spooled
from hypaware.maintain.purge.finding import FindTask, candidates, tasks
from hypaware.maintain.purge.purging import Gone, Removed, Report
from hypaware.maintain.purge.selection import Selector, left_alone
from hypaware.model import datasets
from hypaware.model.datasets import Dataset
from hypaware.opening import open_home
from hypaware.spool import reader, segments

Progress = Callable[[str, int, int], None]
Seqs = dict[tuple[str, str], "array[int]"]


def count(home: Home, selector: Selector, progress: Progress) -> dict[str, Any]:
    """Return the report of the dry run."""
    standing.check_tables(home)
    report, seqs = Report(selector, dry_run=True), Seqs()
    report.left_alone = left_alone(selector, datasets.all())
    sessions = at_work.told(home, selector, _spooled_rows)
    for dataset in datasets.all():
        if (dataset_selector := selector.for_dataset(dataset, sessions)) is not None:
            if result := _in_table(home, dataset_selector, dataset, seqs, progress):
                report.datasets.append(result)
            report.spool_rows += sum(dataset_selector.matches(dataset, row) for row in _spooled_rows(home, dataset))
            folder = segments.folder(home, dataset.name)
            matches = spooled.judge(dataset_selector, dataset, Gone(), None)
            report.rejects += sum(
                matches(line) for path in spooled.rejected_files(folder) for line in spooled.kept_lines(path)
            )
    if home.state.is_file():
        with closing(open_home(home).store) as store:
            report.letters, report.letter_rows = letters.counted(store, selector)
            report.delivered = copies.told(store, seqs)
    return report.as_json()


def _spooled_rows(home: Home, dataset: Dataset) -> Iterator[dict[str, Any]]:
    yield from reader.read_spooled_rows(home, dataset.name)
    for path in spooled.incoming_files(segments.folder(home, dataset.name)):
        yield from spooled.rows_of(dataset, path)


def _in_table(home: Home, selector: Selector, dataset: Dataset, seqs: Seqs, progress: Progress) -> Removed | None:
    entry = metadata.entry(home, dataset.name)
    if entry is None:
        return None
    table_metadata = metadata.read(entry.metadata)
    files = {file.path: file for file in metadata.live_files(table_metadata)}
    result = Removed(dataset.name)
    files_to_search = candidates(list(files.values()), selector)
    for task in tasks(dataset, files_to_search, selector, table_metadata.properties.get(metadata.GATEWAY_ID)):
        progress(f"searching {dataset.name}", result.files_looked_at, len(files_to_search))
        for file_matches in _run(task):
            result.files_looked_at += 1
            result.unattributed += file_matches.unattributed
            if file_matches.rows:
                source = files[file_matches.path].source
                result.rows += file_matches.rows
                result.sources[source] += file_matches.rows
                result.files_rewritten += not file_matches.is_whole_file
                result.files_removed += file_matches.is_whole_file
                seqs.setdefault((dataset.name, source), array("q")).extend(file_matches.seqs)
    return result


def _run(task: FindTask) -> list[Any]:
    try:
        return task.run().reports
    except (OSError, pa.ArrowException) as error:
        raise LakeError(
            f"{task.dataset}: cannot read a data file ({error})",
            kind="lake_damaged",
            repair=f"hyp maintain {task.dataset} --rebuild",
        ) from error
