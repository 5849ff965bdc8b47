"""A dry run: what an import would write, skip and reject, exactly, without a trace. Runs in this process, no Spark.

Sources are read and made into rows by the same pieces as in a real run; nothing is written anywhere. What is there
already is asked from the key index, the data files that it has not taken in, and the spool.
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
"""Which of the rows were purged before."""

# Less than this is read before another process has started.
_WORTH_A_POOL = 32 << 20
_SOME_GATEWAY = "dry-run"


@dataclass(frozen=True)
class DryTask:
    dataset: str
    pieces: tuple[SourcePiece, ...]
    own_gateway: str | None = None
    closed: Closed = NOTHING
    meets: bool = False
    """Whether rows may meet what was recorded live."""

    def run(self) -> DryBuilt:
        dataset = datasets.get(self.dataset)
        found = DryBuilt()
        bar = self.closed.bar(dataset)
        for piece in self.pieces:
            before = len(found.built.withdrawn)
            given = DryBuilt(found.built)
            keys: list[tuple[int, bytes]] = []
            purged = array("q")
            meetings = Meetings()
            note = noting(dataset, self.own_gateway, True, meetings) if self.meets else None
            for seq, row in piece.rows(dataset, found.built):
                if bar is not None and bar(row):
                    purged.append(seq)
                    continue
                given.rows += 1
                given.days.setdefault(row[dataset.time_column][:10], array("q")).append(seq)
                if (key := row_key(dataset, row, self.own_gateway)) is not None:
                    keys.append((seq, key))
                if note is not None:
                    note(row, seq)
            if len(found.built.withdrawn) == before:
                found.add(given, keys)
                found.built.purged.extend(purged)
                for met in meetings:
                    found.built.meetings.add(met)
        return found


@dataclass
class DryBuilt:
    built: Built = field(default_factory=Built)
    rows: int = 0
    days: dict[str, array[int]] = field(default_factory=dict)

    def add(self, given: DryBuilt, keys: Sequence[tuple[int, bytes]]) -> None:
        """What one source gave, and did not take back."""
        self.rows += given.rows
        for day, seqs in given.days.items():
            self.days.setdefault(day, array("q")).extend(seqs)
        for seq, key in keys:
            self.built.seqs.append(seq)
            self.built.keys += key


def dry_run(home: Home, config: Config, args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """INTERFACE's backfill document with `dry_run: true`."""
    request = Request.of(args)
    admission = Admission.of(home, config, remembers=False)
    with nothing_on_stdout():
        return run_all(request, _DryRun(home, admission, request, progress).run, dry_run=True)


class _DryRun:
    def __init__(self, home: Home, admission: Admission, request: Request, progress: Progress) -> None:
        self._home = home
        self._admission = admission
        self._request = request
        self._progress = progress
        self._present: dict[str, Present] = {}
        """What is there, or would be after the providers before: one for each dataset."""

    def run(self, outcome: Outcome, dataset: Dataset) -> None:
        home, provider = self._home, outcome.entry.name
        known = self._admission.standing(marks.known(home, provider, dataset.name))
        standing.check(home, dataset.name, marks.recorded_through(home, dataset.name))
        window = kept_window(self._request.window, metadata.retained_from(home, dataset.name))
        found = surveyed(outcome, self._request, dataset, known, window)
        held = mirror.read(home.mirror)
        gateway_id = held.identity.gateway_id if held else _SOME_GATEWAY
        environment = dict(self._request.environment)
        origin = Origin(provider, dataset.name, environment, gateway_id, self._admission)
        present = self._present.setdefault(dataset.name, Present(home, dataset, gateway_id))
        stones = tombstones.read(home)
        after = read = 0
        for lot in lots.lots(found.due):
            results = []
            for task, result in _run(list(_tasks(lot, origin, after, stones.closed, present.meets))):
                results.append(result)
                read += lots.size_of(task.pieces)
                facts = {"unit": "bytes", "rows": outcome.rows_written + sum(each.rows for each in results)}
                self._progress("reading", read, found.bytes, facts)
            after += lot.blocks
            _settle(outcome, present, results, lambda built: barred.settle(stones, dataset, gateway_id, built))


def _settle(outcome: Outcome, present: Present, results: Sequence[DryBuilt], judge: Judge) -> None:
    reports = [report for result in results for report in result.built.notes]
    refuse_faults(reports)
    built = [result.built for result in results]
    out = judge(built)
    keyed = (pair for each in built for pair in pairs(each.keys, each.seqs))
    losers = present.duplicates([(key, seq) for key, seq in keyed if seq not in out.written])
    settled = present.settled(built, losers | out.written)
    left_out = losers | out.written | settled
    outcome.read(reports, losers | out.all | settled)
    outcome.settled(len(settled))
    outcome.wrote(
        sum(result.rows for result in results) - len(left_out),
        len(losers),
        len(out.refused),
        (day for result in results for day, seqs in result.days.items() if not left_out.issuperset(seqs)),
    )
    outcome.kept_out(len(out.all) + out.rejects)


def _tasks(lot: Lot, origin: Origin, after: int, closed: Closed, meets: bool) -> Iterator[DryTask]:
    for some in lots.in_tasks(lots.pieces(lot, origin, after)):
        yield DryTask(origin.dataset, tuple(some), origin.gateway_id, closed, meets)


def _run(tasks: list[DryTask]) -> Iterator[tuple[DryTask, DryBuilt]]:
    if sum(lots.size_of(task.pieces) for task in tasks) < _WORTH_A_POOL:
        yield from ((task, task.run()) for task in tasks)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=spawn, initializer=os.dup2, initargs=(2, 1)) as pool:
        try:
            yield from zip(tasks, pool.map(DryTask.run, tasks), strict=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
