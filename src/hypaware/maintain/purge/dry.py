"""A dry run: what a purge would remove, counted without a trace. In this process, without Spark."""

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
    standing.check_tables(home)
    report, seqs = Report(selector, dry_run=True), Seqs()
    report.left_alone = left_alone(selector, datasets.all())
    told = at_work.told(home, selector, _waiting)
    for dataset in datasets.all():
        if (within := selector.within(dataset, told)) is not None:
            if removed := _in_table(home, within, dataset, seqs, progress):
                report.datasets.append(removed)
            report.spool_rows += sum(within.matches(dataset, row) for row in _waiting(home, dataset))
            folder = segments.folder(home, dataset.name)
            meant = spooled.judge(within, dataset, Gone(), None)
            report.rejects += sum(
                meant(line) for path in spooled.rejected_files(folder) for line in spooled.kept_lines(path)
            )
    if home.state.is_file():
        with closing(open_home(home).store) as store:
            report.letters, report.letter_rows = letters.counted(store, selector)
            report.delivered = copies.told(store, seqs)
    return report.as_json()


def _waiting(home: Home, dataset: Dataset) -> Iterator[dict[str, Any]]:
    yield from reader.read_spooled_rows(home, dataset.name)
    for path in spooled.incoming_files(segments.folder(home, dataset.name)):
        yield from spooled.rows_of(dataset, path)


def _in_table(home: Home, selector: Selector, dataset: Dataset, seqs: Seqs, progress: Progress) -> Removed | None:
    entry = metadata.entry(home, dataset.name)
    if entry is None:
        return None
    known = metadata.read(entry.metadata)
    files = {file.path: file for file in metadata.live_files(known)}
    removed = Removed(dataset.name)
    due = candidates(list(files.values()), selector)
    for task in tasks(dataset, due, selector, known.properties.get(metadata.GATEWAY_ID)):
        progress(f"looking through {dataset.name}", removed.files_looked_at, len(due))
        for found in _run(task):
            removed.files_looked_at += 1
            removed.unsaid += found.unsaid
            if found.rows:
                source = files[found.path].source
                removed.rows += found.rows
                removed.sources[source] += found.rows
                removed.files_rewritten += not found.whole
                removed.files_removed += found.whole
                seqs.setdefault((dataset.name, source), array("q")).extend(found.seqs)
    return removed


def _run(task: FindTask) -> list[Any]:
    try:
        return task.run().notes
    except (OSError, pa.ArrowException) as error:
        raise LakeError(
            f"{task.dataset}: a data file cannot be read ({error})",
            kind="lake_damaged",
            repair=f"hyp maintain {task.dataset} --rebuild",
        ) from error
