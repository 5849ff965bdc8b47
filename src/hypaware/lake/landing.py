"""Commit: the steps that flushes and imports share.

The caller holds the lake's lock (one JVM per home) and the table's commit lock. No other job reserves or commits
between our reservation and our record, so rows become visible in the order of their sequences.

@ref flush#commit @ref flush#record
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from hypaware import durable, faults
from hypaware.errors import Retryable
from hypaware.home import Home
from hypaware.lake import keyring, recover, secure, standing
from hypaware.lake.committer import Lake, LakeTable, NotCommitted
from hypaware.lake.keys import Staged
from hypaware.lake.prepare import Prepared, Ready
from hypaware.model.datasets import Dataset
from hypaware.state import flushes
from hypaware.state.flushes import Flush, Outcome
from hypaware.state.store import Store

_before_commit = faults.point("lake.commit.before-commit", "the flush is built and deduplicated, not committed")
_after_commit = faults.point("lake.commit.after-commit", "the flush is in the lake, the state has not recorded it")
_after_record = faults.point("lake.record.after-commit", "the flush is recorded, its segment files still exist")
_before_remove = faults.point("lake.remove.before-unlink", "keys are indexed, the segment files still exist")
_after_remove = faults.point("lake.remove.after-unlink", "the segment files are removed")


@dataclass(frozen=True)
class Landing:
    home: Home
    store: Store
    lake: Lake

    @contextmanager
    def open_table(self, dataset: Dataset) -> Iterator[Ready]:
        """Open a table for writing. Finish or discard interrupted flushes; refuse a lake older than its state."""
        durable.make_dir(self.home.lake)
        secure.refuse_damaged(self.home, dataset.name)
        standing.check(self.home, dataset.name, self._recorded(dataset.name))
        table = self.lake.table(dataset)
        # The last process may have died before its commit was durable; nothing may follow before it is.
        secure.secure(self.home, dataset.name)
        recover.settle_unfinished(self.home, self.store, table, dataset.name)
        with closing(keyring.opened(self.home, self.lake, table, dataset)) as index:
            yield Ready(table, index)

    def commit(self, target: Ready, flush: Flush, prepared: Prepared) -> Outcome:
        """Commit, fsync, record, index the keys and remove the segments."""
        # Indexing the keys of a large import takes long: it runs in the background and takes effect after the record.
        with target.index.stage(prepared.keys, prepared.match_keys, prepared.matched) as staged:
            self._commit(target.table, flush, prepared)
            outcome = prepared.outcome()
            try:
                self._record(target, flush, prepared, outcome, staged)
            except OSError as error:
                # The rows are committed. The flush stays reserved, and recovery finishes it.
                raise Retryable(
                    f"{flush.dataset}: rows are in the lake but not recorded ({error}); the next flush records them",
                    kind="flush_unfinished",
                ) from error
        return outcome

    def _record(self, target: Ready, flush: Flush, prepared: Prepared, outcome: Outcome, staged: Staged) -> None:
        if prepared.files:
            _after_commit()
            secure.secure(self.home, flush.dataset)
        recover.record(self.home, self.store, flush, outcome)
        _after_record()
        staged.commit(flush.dataset, target.table.uuid, target.table.floor)
        _before_remove()
        recover.remove_segments(self.home, flush)
        _after_remove()

    def _commit(self, table: LakeTable, flush: Flush, prepared: Prepared) -> None:
        """Discard the flush only if it certainly was not committed. After any other error recovery checks the lake."""
        _before_commit()
        if prepared.files:
            try:
                table.commit(flush, prepared.files)
            except NotCommitted:
                recover.burn(self.home, self.store, table, flush, blamed=())
                raise

    def _recorded(self, dataset: str) -> int:
        with self.store.reading() as connection:
            return flushes.recorded_through(connection, dataset)
