"""Batches of an import: one commit each. The next ones are built while the last one is committed.

The first batch is small, so that its rows can be queried early and an interrupted import keeps them; later ones are
larger, because each commit has a fixed cost. A batch is divided into tasks. A task reads neighbouring sources, whose
days share files. Each source has its own range of sequences.

Sequences are reserved in import order, before the build. Only builds overlap with a commit: a batch is compared with
the lake only after the one before it was committed, so the row with the lowest sequence of a key is kept. If a batch
fails, the builds of all later ones end, and those batches are discarded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import TypeVar

from hypaware.backfill.source_rows import ImportContext, SourcePiece, SourceTask
from hypaware.backfill.survey import DueSource
from hypaware.lake import commit
from hypaware.lake.build import BuildFailure, BuildResult, BuildSettings, BuildWatcher
from hypaware.lake.prepare import plan_build
from hypaware.lake.table import OpenTable
from hypaware.state.flushes import Flush

BATCH_BYTES = (32 << 20, 64 << 20, 128 << 20)
"""The largest size of the first batch, the second, and all later ones."""
_TASK_BYTES = 16 << 20
_MAX_BUILDS = 2
"""While the last tasks of one batch run, the other workers run tasks of the next one."""


@dataclass(frozen=True)
class ImportBatch:
    due: tuple[DueSource, ...]

    @property
    def bytes(self) -> int:
        return sum(each.snapshot.size for each in self.due)

    @property
    def max_rows(self) -> int:
        """The number of sequences to reserve; at least one, so that ranges never touch."""
        return max(1, sum(each.max_rows for each in self.due))

    def halves(self) -> tuple[ImportBatch, ImportBatch]:
        middle = len(self.due) // 2
        return ImportBatch(self.due[:middle]), ImportBatch(self.due[middle:])


@dataclass(frozen=True)
class StartedBatch:
    """A batch with its sequences, whose tasks run in the background."""

    batch: ImportBatch
    flush: Flush
    settings: BuildSettings
    built: Future[list[BuildResult | BuildFailure]]


@dataclass
class BatchQueue:
    """The batches of an import, in order. `close` discards those that were started and not taken."""

    target: OpenTable
    context: ImportContext
    watch: Callable[[Flush], BuildWatcher | None] = lambda _: None
    pending: deque[ImportBatch] = field(default_factory=deque)
    _started: deque[StartedBatch] = field(default_factory=deque)
    _max_builds: int = _MAX_BUILDS

    def fill(self) -> bool:
        """Start batches until enough of them are being built. Return False if none is left."""
        while self.pending and len(self._started) < self._max_builds:
            batch = self.pending[0]
            flush = commit.reserve_import(self.target, batch.max_rows)
            with commit.discard_on_error(self.target, flush):
                settings = plan_build(self.target, flush, self.target.table.gateway_id)
                tasks = make_tasks(batch, self.context, settings, flush.after)
                built = self.target.lake.start(tasks, self.watch(flush))
            self._started.append(StartedBatch(self.pending.popleft(), flush, settings, built))
        return bool(self._started)

    def take(self) -> StartedBatch:
        """Return the first batch when its build has ended, and start another one in its place."""
        wait([self._started[0].built])
        taken = self._started.popleft()
        try:
            self.fill()
        except BaseException:
            self._started.appendleft(taken)
            raise
        return taken

    def put_back(self, batches: Iterable[ImportBatch]) -> None:
        """Put batches in front of the pending ones. From now on batches are built one at a time."""
        self.close()
        self.pending.extendleft(reversed(list(batches)))
        self._max_builds = 1

    def close(self) -> None:
        """Discard the started batches; they are pending again."""
        while self._started:
            last = self._started[-1]
            wait([last.built])
            commit.discard_flush(self.target.home, self.target.store, self.target.table, last.flush)
            self.pending.appendleft(self._started.pop().batch)


def split_batches(due: Iterable[DueSource]) -> Iterator[ImportBatch]:
    """Divide due sources into batches, in import order."""
    yield from map(ImportBatch, group_by_size(due, chain(BATCH_BYTES, repeat(BATCH_BYTES[-1]))))


def make_tasks(batch: ImportBatch, context: ImportContext, settings: BuildSettings, after: int) -> list[SourceTask]:
    """Return the tasks of a batch. Each source has its own range of sequences; the first begins after `after`."""
    sources, first_seq = [], after + 1
    for each in batch.due:
        sources.append(SourcePiece(context, first_seq, each.max_rows, each.snapshot))
        first_seq += each.max_rows
    tasks = [SourceTask(settings, group) for group in group_by_size(sources, repeat(_TASK_BYTES))]
    # The largest tasks start first, so that none of them runs alone at the end.
    return sorted(tasks, key=lambda task: -task.bytes)


_Sized = TypeVar("_Sized", DueSource, SourcePiece)


def group_by_size(items: Iterable[_Sized], limits: Iterator[int]) -> Iterator[tuple[_Sized, ...]]:
    """Group neighbouring items up to the limit of each group; a larger item forms a group of its own."""
    group: list[_Sized] = []
    filled, limit = 0, next(limits)
    for item in items:
        if group and filled + item.snapshot.size > limit:
            yield tuple(group)
            group, filled, limit = [], 0, next(limits)
        group.append(item)
        filled += item.snapshot.size
    if group:
        yield tuple(group)
