"""Intake: rows that come from somewhere else than the spool go the flush's way, without being staged first.

    reserve · build · settle · pend · commit · secure · record

Blocks of sequences are reserved before anything is read: as many numbers as there can be rows, gaps are free. What
was taken of each source becomes pending after the build and counts when the flush is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from hypaware import faults
from hypaware.lake import recover
from hypaware.lake.build import BuildTask
from hypaware.lake.committer import LakeTable
from hypaware.lake.landing import Landing
from hypaware.lake.prepare import Prepared, Ready, prepare
from hypaware.state import flushes, sources
from hypaware.state.flushes import Flush, Outcome
from hypaware.state.source_mark import SourceMark

_after_reserve = faults.point("lake.intake.after-reserve", "blocks are reserved for an import, nothing is read")
_after_pend = faults.point("lake.intake.after-pend", "what an import takes of its sources is noted, not committed")

TasksOf = Callable[[Flush, LakeTable], Sequence[BuildTask]]
Judge = Callable[[Prepared], None]


@dataclass(frozen=True)
class Intake:
    landing: Landing
    ready: Ready

    def build(self, dataset: str, size: int, tasks_of: TasksOf, judge: Judge) -> tuple[Flush, Prepared]:
        """The rows as files that nothing names yet. `judge` may refuse them; whatever is raised leaves nothing."""
        with self.landing.store.transaction() as connection:
            flush = flushes.reserve_blocks(connection, dataset, size, above=self.ready.table.floor)
        _after_reserve()
        with self._burnt_unless_done(flush):
            tasks = tasks_of(flush, self.ready.table)
            prepared = prepare(self.landing.home, self.landing.lake, self.ready, flush, tasks)
            judge(prepared)
        return flush, prepared

    def land(self, flush: Flush, prepared: Prepared, marks: Sequence[SourceMark]) -> Outcome:
        """One commit, and what it took of each source."""
        with self._burnt_unless_done(flush), self.landing.store.transaction() as connection:
            sources.pend(connection, flush.id, marks)
        _after_pend()
        return self.landing.land(self.ready, flush, prepared)

    @contextmanager
    def _burnt_unless_done(self, flush: Flush) -> Iterator[None]:
        try:
            yield
        except Exception:
            recover.burn(self.landing.home, self.landing.store, self.ready.table, flush, guilty=())
            raise
