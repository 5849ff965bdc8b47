"""Import rows that do not come from the spool, with the steps of a flush.

    reserve · build · drop duplicates · mark checkpoints pending · commit · fsync · record

Sequences are reserved before anything is read, as many as there can be rows; gaps are allowed. The new checkpoint of
each source is pending after the build and takes effect when the flush is recorded.
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

_after_reserve = faults.point("lake.intake.after-reserve", "sequences are reserved for an import, nothing is read")
_after_pend = faults.point(
    "lake.intake.after-pend", "the checkpoints of an import are pending, its rows are not committed"
)

TasksOf = Callable[[Flush, LakeTable], Sequence[BuildTask]]
Judge = Callable[[Prepared], None]


@dataclass(frozen=True)
class Intake:
    session: Landing
    target: Ready

    def build(self, dataset: str, size: int, make_tasks: TasksOf, check: Judge) -> tuple[Flush, Prepared]:
        """Write the rows to files that no table references yet. `check` may raise; any error discards the flush."""
        with self.session.store.transaction() as connection:
            flush = flushes.reserve_blocks(connection, dataset, size, above=self.target.table.floor)
        _after_reserve()
        with self._discarded_on_error(flush):
            tasks = make_tasks(flush, self.target.table)
            prepared = prepare(self.session.home, self.session.lake, self.target, flush, tasks)
            check(prepared)
        return flush, prepared

    def commit(self, flush: Flush, prepared: Prepared, marks: Sequence[SourceMark]) -> Outcome:
        """Commit the rows together with the new checkpoints of their sources."""
        with self._discarded_on_error(flush), self.session.store.transaction() as connection:
            sources.pend(connection, flush.id, marks)
        _after_pend()
        return self.session.commit(self.target, flush, prepared)

    @contextmanager
    def _discarded_on_error(self, flush: Flush) -> Iterator[None]:
        try:
            yield
        except Exception:
            recover.burn(self.session.home, self.session.store, self.target.table, flush, blamed=())
            raise
