"""A dry run: exactly what an import would write, skip and reject. Changes nothing; runs in this process, without Spark.

It surveys the sources and builds their rows with the tasks of a real run, and counts the rows instead of writing them.
Existing keys are looked up in the key index, in data files that the index does not cover yet, and in the spool.
"""

from __future__ import annotations

import multiprocessing
import os
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from hypaware.backfill.batches import make_tasks, split_batches
from hypaware.backfill.import_job import run_providers, survey_for_report
from hypaware.backfill.report import ImportReport, redirect_stdout
from hypaware.backfill.request import ImportArguments, ImportPolicy
from hypaware.backfill.source_rows import ImportContext, SourceTask
from hypaware.backfill.survey import read_import_state
from hypaware.config import Config
from hypaware.home import Home
from hypaware.lake import prepare, tombstones
from hypaware.lake.build import BuildResult, BuildSettings, BuiltFile
from hypaware.lake.key_lookup import ExistingKeys
from hypaware.lake.prepare import PurgedRows
from hypaware.lake.row_keys import unpack_keys
from hypaware.model import datasets
from hypaware.model.datasets import Dataset, Row
from hypaware.model.row_counts import RowCounts
from hypaware.spool.segments import SegmentUnreadable
from hypaware.state import mirror

DryRunProgress = Callable[[str, float, float, dict[str, Any]], None]
# Fewer bytes are read before another process has started.
_POOL_THRESHOLD = 32 << 20


def run_dry(home: Home, config: Config, args: Mapping[str, Any], progress: DryRunProgress) -> dict[str, Any]:
    """Return the backfill document with `dry_run: true`."""
    request = ImportArguments(**args)
    policy = ImportPolicy.from_config(home, config, remembers=False)
    # Dataset → the keys that exist, or would exist after the earlier providers of this run.
    existing_keys: dict[str, ExistingKeys] = {}

    def count_dataset(report: ImportReport, dataset: Dataset) -> None:
        provider = report.entry.name
        state = read_import_state(home, provider, dataset.name)
        found = survey_for_report(report, home, request, dataset, state, policy)
        mirrored = mirror.read_mirror(home.mirror)
        gateway_id = mirrored.identity.gateway_id if mirrored else "dry-run"
        of_rows = mirrored.identity.gateway_of_rows(home.root) if mirrored else gateway_id
        context = ImportContext(provider, dataset.name, dict(request.environment), of_rows, policy)
        existing = existing_keys.setdefault(dataset.name, ExistingKeys(home, dataset, gateway_id))
        stones = tombstones.read_tombstones(home)
        match_native = stones.has_parts or existing.may_match
        settings = BuildSettings(dataset.name, "dry-run", home.lake, {}, gateway_id, stones, match_native)
        after = read = 0
        for batch in split_batches(found.due):
            counted = []
            for task, result in _run_tasks(make_tasks(batch, context, settings, after)):
                counted.append(result)
                read += task.bytes
                rows = report.rows.written + sum(each.rows for each in counted)
                progress("reading", read, found.bytes, {"unit": "bytes", "rows": rows})
            after += batch.max_rows
            purged = prepare.find_purged(stones, dataset, gateway_id, [each.built for each in counted])
            _add_to_report(report, existing, counted, purged)
        if existing.unreadable:
            report.warnings.append(SegmentUnreadable(dataset.name, existing.unreadable).message)

    with redirect_stdout():
        return run_providers(request, count_dataset, dry_run=True)


@dataclass
class _RowCounter:
    """Takes the place of the writer of a build: counts rows by day."""

    time_column: str
    days: dict[str, array[int]] = field(default_factory=dict)

    def add(self, row: Row, seq: int) -> None:
        self.days.setdefault(row[self.time_column][:10], array("q")).append(seq)

    def close(self) -> list[BuiltFile]:
        return []

    def discard(self) -> None:
        pass


@dataclass(frozen=True)
class _Counted:
    built: BuildResult
    days: Mapping[str, Sequence[int]]
    """Day → the sequences of its rows, without withdrawn ones."""

    @property
    def rows(self) -> int:
        return sum(map(len, self.days.values()))


def count_rows(task: SourceTask) -> _Counted:
    """Build the rows of a task, and count them instead of writing them."""
    counter = _RowCounter(datasets.get(task.settings.dataset).time_column)
    built = task.run(counter)
    days = counter.days
    if built.withdrawn:
        withdrawn = {seq for part in built.withdrawn for seq in part}
        days = {day: array("q", (seq for seq in seqs if seq not in withdrawn)) for day, seqs in days.items()}
        built = prepare.drop_withdrawn(built)
    return _Counted(built, {day: seqs for day, seqs in days.items() if seqs})


def _add_to_report(
    report: ImportReport, existing: ExistingKeys, counted: Sequence[_Counted], purged: PurgedRows
) -> None:
    built = [each.built for each in counted]
    sources_read = [source for each in built for source in each.reports]
    for source in sources_read:
        if source.fault is not None:
            raise source.fault
    keyed = (pair for each in built for pair in unpack_keys(each.keys, each.seqs))
    duplicates = existing.duplicates([(key, seq) for key, seq in keyed if seq not in purged.written])
    settled = existing.settled(built, duplicates, purged.written)
    duplicates -= settled
    dropped = duplicates | purged.written | settled
    counts = RowCounts(
        written=sum(each.rows for each in counted) - len(dropped),
        duplicate=len(duplicates),
        rejected=len(purged.rejects),
        settled=len(settled),
        purged=len(purged.all) + purged.purged_rejects,
    )
    days = (day for each in counted for day, seqs in each.days.items() if not dropped.issuperset(seqs))
    report.add_batch(sources_read, dropped | purged.skipped, counts, days)


def _run_tasks(tasks: list[SourceTask]) -> Iterator[tuple[SourceTask, _Counted]]:
    if sum(task.bytes for task in tasks) < _POOL_THRESHOLD:
        yield from ((task, count_rows(task)) for task in tasks)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=spawn, initializer=os.dup2, initargs=(2, 1)) as pool:
        try:
            yield from zip(tasks, pool.map(count_rows, tasks), strict=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
