"""A dry run: exactly what an import would write, skip and reject. Changes nothing; runs in this process, without Spark.

The same tasks as in a real run read the sources and make the rows. Existing keys are looked up in the key index, in
data files that the index does not cover yet, and in the spool.
"""

from __future__ import annotations

import multiprocessing
import os
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from hypaware.backfill import lots, marks
from hypaware.backfill.admission import Admission
from hypaware.backfill.lots import Lot, Origin
from hypaware.backfill.outcome import Outcome
from hypaware.backfill.pieces import SourcePiece, refuse_faults
from hypaware.backfill.present import Present
from hypaware.backfill.quiet import nothing_on_stdout
from hypaware.backfill.request import Request, kept_window, run_all, surveyed
from hypaware.config import Config
from hypaware.home import Home
from hypaware.lake import barred, metadata, standing, tombstones
from hypaware.lake.build import Built, row_key
from hypaware.lake.closed import NOTHING, Closed
from hypaware.lake.keys import pairs
from hypaware.lake.meetings import Meetings, noting
from hypaware.model import datasets
from hypaware.model.datasets import Dataset
from hypaware.state import mirror

Progress = Callable[[str, float, float, dict[str, Any]], None]
Judge = Callable[[Sequence[Built]], barred.KeptOut]
"""Returns which of the rows were purged before."""

# Fewer bytes are read before another process has started.
_POOL_THRESHOLD = 32 << 20
_PLACEHOLDER_GATEWAY = "dry-run"


@dataclass(frozen=True)
class DryTask:
    dataset: str
    pieces: tuple[SourcePiece, ...]
    own_gateway: str | None = None
    purge_filter: Closed = NOTHING
    may_match: bool = False
    """Whether rows may match live rows of the lake."""

    def run(self) -> DryBuilt:
        dataset = datasets.get(self.dataset)
        total = DryBuilt()
        bar = self.purge_filter.predicate(dataset)
        for piece in self.pieces:
            before = len(total.built.withdrawn)
            part = DryBuilt(total.built)
            keys: list[tuple[int, bytes]] = []
            purged = array("q")
            meetings = Meetings()
            note = noting(dataset, self.own_gateway, True, meetings) if self.may_match else None
            for seq, row in piece.rows(dataset, total.built):
                if bar is not None and bar(row):
                    purged.append(seq)
                    continue
                part.rows += 1
                part.days.setdefault(row[dataset.time_column][:10], array("q")).append(seq)
                if (key := row_key(dataset, row, self.own_gateway)) is not None:
                    keys.append((seq, key))
                if note is not None:
                    note(row, seq)
            if len(total.built.withdrawn) == before:
                total.add(part, keys)
                total.built.purged.extend(purged)
                for met in meetings:
                    total.built.match_keys.add(met)
        return total


@dataclass
class DryBuilt:
    built: Built = field(default_factory=Built)
    rows: int = 0
    days: dict[str, array[int]] = field(default_factory=dict)

    def add(self, part: DryBuilt, keys: Sequence[tuple[int, bytes]]) -> None:
        """Add the rows of one source that was read completely."""
        self.rows += part.rows
        for day, seqs in part.days.items():
            self.days.setdefault(day, array("q")).extend(seqs)
        for seq, key in keys:
            self.built.seqs.append(seq)
            self.built.keys += key


def dry_run(home: Home, config: Config, args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Return the backfill document with `dry_run: true`."""
    request = Request.from_args(args)
    policy = Admission.from_config(home, config, remembers=False)
    with nothing_on_stdout():
        return run_all(request, _DryRun(home, policy, request, progress).run, dry_run=True)


class _DryRun:
    def __init__(self, home: Home, policy: Admission, request: Request, progress: Progress) -> None:
        self._home = home
        self._policy = policy
        self._request = request
        self._progress = progress
        self._present: dict[str, Present] = {}
        """Dataset → the keys that exist, or would exist after the earlier providers of this run."""

    def run(self, outcome: Outcome, dataset: Dataset) -> None:
        home, provider = self._home, outcome.entry.name
        checkpoints = self._policy.drop_stale(marks.known(home, provider, dataset.name))
        standing.check(home, dataset.name, marks.recorded_through(home, dataset.name))
        window = kept_window(self._request.window, metadata.retained_from(home, dataset.name))
        found = surveyed(outcome, self._request, dataset, checkpoints, window)
        mirrored = mirror.read(home.mirror)
        gateway_id = mirrored.identity.gateway_id if mirrored else _PLACEHOLDER_GATEWAY
        environment = dict(self._request.environment)
        origin = Origin(provider, dataset.name, environment, gateway_id, self._policy)
        present = self._present.setdefault(dataset.name, Present(home, dataset, gateway_id))
        stones = tombstones.read(home)
        after = read = 0
        for batch in lots.lots(found.due):
            results = []
            for task, result in _run(list(_tasks(batch, origin, after, stones.purge_filter, present.may_match))):
                results.append(result)
                read += lots.size_of(task.pieces)
                facts = {"unit": "bytes", "rows": outcome.rows_written + sum(each.rows for each in results)}
                self._progress("reading", read, found.bytes, facts)
            after += batch.max_rows
            _settle(outcome, present, results, lambda built: barred.settle(stones, dataset, gateway_id, built))


def _settle(outcome: Outcome, present: Present, results: Sequence[DryBuilt], find_purged: Judge) -> None:
    reports = [report for result in results for report in result.built.reports]
    refuse_faults(reports)
    built = [result.built for result in results]
    purged = find_purged(built)
    keyed = (pair for each in built for pair in pairs(each.keys, each.seqs))
    duplicates = present.duplicates([(key, seq) for key, seq in keyed if seq not in purged.written])
    settled = present.settled(built, duplicates | purged.written)
    dropped = duplicates | purged.written | settled
    outcome.add_sources(reports, duplicates | purged.all | settled)
    outcome.add_settled(len(settled))
    outcome.add_rows(
        sum(result.rows for result in results) - len(dropped),
        len(duplicates),
        len(purged.rejects),
        (day for result in results for day, seqs in result.days.items() if not dropped.issuperset(seqs)),
    )
    outcome.add_purged(len(purged.all) + purged.purged_rejects)


def _tasks(batch: Lot, origin: Origin, after: int, closed: Closed, may_match: bool) -> Iterator[DryTask]:
    for pieces in lots.in_tasks(lots.pieces(batch, origin, after)):
        yield DryTask(origin.dataset, tuple(pieces), origin.gateway_id, closed, may_match)


def _run(tasks: list[DryTask]) -> Iterator[tuple[DryTask, DryBuilt]]:
    if sum(lots.size_of(task.pieces) for task in tasks) < _POOL_THRESHOLD:
        yield from ((task, task.run()) for task in tasks)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=spawn, initializer=os.dup2, initargs=(2, 1)) as pool:
        try:
            yield from zip(tasks, pool.map(DryTask.run, tasks), strict=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
