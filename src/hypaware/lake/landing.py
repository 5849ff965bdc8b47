"""Landing: what every flush has in common, whether its rows come from the spool or from an import.

The caller holds the lake's lock (one JVM per home) and this table's mutex: nobody else reserves or commits between
our reserve and our record, so rows become visible in the order of their sequences.

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

_before_commit = faults.point("lake.commit.before-commit", "the flush is built and settled, not committed")
_after_commit = faults.point("lake.commit.after-commit", "the flush is in the lake, the state does not know")
_after_record = faults.point("lake.record.after-commit", "the flush is recorded, its segment files are still there")
_before_remove = faults.point("lake.remove.before-unlink", "keys are indexed, the segment files are still there")
_after_remove = faults.point("lake.remove.after-unlink", "the segment files are gone")


@dataclass(frozen=True)
class Landing:
    home: Home
    store: Store
    lake: Lake

    @contextmanager
    def ready(self, dataset: Dataset) -> Iterator[Ready]:
        """Finishes or takes back what somebody left, and refuses a lake that went back behind its state."""
        durable.make_dir(self.home.lake)
        secure.refuse_damaged(self.home, dataset.name)
        standing.check(self.home, dataset.name, self._recorded(dataset.name))
        table = self.lake.table(dataset)
        # Whoever committed last may have died before it was durable; nothing may follow before it is.
        secure.secure(self.home, dataset.name)
        recover.settle_unfinished(self.home, self.store, table, dataset.name)
        with closing(keyring.opened(self.home, self.lake, table, dataset)) as index:
            yield Ready(table, index)

    def land(self, ready: Ready, flush: Flush, prepared: Prepared) -> Outcome:
        """commit · secure · record · index · remove."""
        # The keys of a large import take a while; they are written beside the commit, and count after the record.
        with ready.index.staged(prepared.keys, prepared.meetings, prepared.met) as staged:
            self._commit(ready.table, flush, prepared)
            outcome = prepared.outcome()
            try:
                self._record(ready, flush, prepared, outcome, staged)
            except OSError as error:
                # It has landed. Whatever fails from here on, it stays reserved, and recovery finishes it.
                raise Retryable(
                    f"{flush.dataset}: the rows are in the lake, but {error}; the next flush finishes this one",
                    kind="flush_unfinished",
                ) from error
        return outcome

    def _record(self, ready: Ready, flush: Flush, prepared: Prepared, outcome: Outcome, staged: Staged) -> None:
        if prepared.files:
            _after_commit()
            secure.secure(self.home, flush.dataset)
        recover.record(self.home, self.store, flush, outcome)
        _after_record()
        staged.commit(flush.dataset, ready.table.uuid, ready.table.floor)
        _before_remove()
        recover.remove_segments(self.home, flush)
        _after_remove()

    def _commit(self, table: LakeTable, flush: Flush, prepared: Prepared) -> None:
        """From here on only a clear no burns the flush; after anything else recovery asks the lake what happened."""
        _before_commit()
        if prepared.files:
            try:
                table.commit(flush, prepared.files)
            except NotCommitted:
                recover.burn(self.home, self.store, table, flush, guilty=())
                raise

    def _recorded(self, dataset: str) -> int:
        with self.store.reading() as connection:
            return flushes.recorded_through(connection, dataset)
