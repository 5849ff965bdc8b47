"""Flush: the one way into the lake. Everything here may be killed at any point and is finished or undone later.

    recover · reserve · build · settle · commit · secure · record · remove

The caller holds the lake's lock (one JVM per home) and this table's mutex: nobody else reserves or commits between
our reserve and our record, so rows become visible in the order of their sequences.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hypaware import durable, faults, telemetry
from hypaware.errors import LakeError, Retryable
from hypaware.home import Home
from hypaware.lake import isolate, keyring, metadata, recover, secure
from hypaware.lake.committer import Lake, LakeTable, NotCommitted
from hypaware.lake.keys import KeyIndex
from hypaware.lake.prepare import Prepared, RowsAtFault, prepare
from hypaware.model.datasets import Dataset
from hypaware.spool import reader, repair, segments
from hypaware.spool.segments import Segment
from hypaware.state import flushes
from hypaware.state.flushes import Flush, Outcome
from hypaware.state.store import Store

_after_reserve = faults.point("lake.reserve.after-commit", "a range is reserved, nothing is built")
_before_commit = faults.point("lake.commit.before-commit", "the flush is built and settled, not committed")
_after_commit = faults.point("lake.commit.after-commit", "the flush is in the lake, the state does not know")
_after_record = faults.point("lake.record.after-commit", "the flush is recorded, its segment files are still there")
_before_remove = faults.point("lake.remove.before-unlink", "keys are indexed, the segment files are still there")
_after_remove = faults.point("lake.remove.after-unlink", "the segment files are gone")

_MAX_SEGMENTS = 200
_WAIT_FOR_PRODUCERS = 5.0


@dataclass(frozen=True)
class Limits:
    """How much one flush takes on; a longer spool is flushed in several."""

    max_rows: int = 100_000
    max_bytes: int = 128 << 20


@dataclass
class Report:
    dataset: str
    segments: int = 0
    rows_written: int = 0
    rows_duplicate: int = 0
    rows_rejected: int = 0
    rows_settled: int = 0
    seq_after: int | None = None
    seq_last: int | None = None
    flush_id: str | None = None
    still_active: list[str] = field(default_factory=list)

    def add(self, flush: Flush, outcome: Outcome) -> None:
        self.segments += len(flush.segments)
        self.rows_written += outcome.rows_written
        self.rows_duplicate += outcome.rows_duplicate
        self.rows_rejected += outcome.rows_rejected
        self.seq_after = flush.after if self.seq_after is None else self.seq_after
        self.seq_last = flush.last
        self.flush_id = flush.id


def _quiet(*_: object) -> None:
    return None


@dataclass(frozen=True)
class Flusher:
    home: Home
    store: Store
    lake: Lake
    limits: Limits = Limits()
    progress: Callable[[str, int, int], None] = _quiet
    check_cancelled: Callable[[], None] = _quiet

    def flush(self, dataset: Dataset, wait: float = _WAIT_FOR_PRODUCERS) -> Report:
        """Commits everything of the dataset that waits in the spool now."""
        try:
            return self._flush(dataset, wait)
        except OSError as error:
            message = f"{dataset.name}: {error}; the rows wait in the spool"
            raise Retryable(message, kind="flush_failed") from error

    def _flush(self, dataset: Dataset, wait: float) -> Report:
        report = Report(dataset.name)
        folder = segments.folder(self.home, dataset.name)
        folder.create()
        stuck = repair.wait_until_sealed(folder, wait)
        report.still_active = [path.name for path in stuck]
        durable.make_dir(self.home.lake)
        self._check_that_the_table_is_there(dataset.name)
        table = self.lake.table(dataset)
        # Whoever committed last may have died before it was durable; nothing may follow before it is.
        secure.secure(self.home, dataset.name)
        recover.settle_unfinished(self.home, self.store, table, dataset.name)
        self._check_not_rolled_back(table, dataset.name)
        index = keyring.opened(self.home, table, dataset.name)
        try:
            # What waits now: producers that never pause must not keep this flush from ending.
            due = {segment.name: segment.rows for segment in self._waiting(dataset.name)}
            total = sum(due.values())
            while chosen := self._choose([each for each in self._waiting(dataset.name) if each.name in due]):
                self.check_cancelled()
                self._flush_once(table, index, dataset.name, chosen, report)
                done = report.rows_written + report.rows_duplicate + report.rows_rejected
                self.progress(f"committing {dataset.name}", done, max(total, done))
        finally:
            index.close()
        return report

    def _flush_once(
        self, table: LakeTable, index: KeyIndex, dataset: str, chosen: list[Segment], report: Report
    ) -> None:
        with telemetry.span("cache.flush", component="lake", operation="flush", hyp_dataset=dataset) as span:
            began = time.monotonic()
            wanted = [(segment.name, segment.rows) for segment in chosen]
            with self.store.transaction() as connection:
                flush = flushes.reserve(connection, dataset, wanted, above=table.floor)
            _after_reserve()
            try:
                paths = {segment.name: segment.path for segment in chosen}
                prepared = prepare(self.home, self.lake, table, index, flush, paths)
            except RowsAtFault as fault:
                # Nothing is lost: the segments wait, and a third failure singles the guilty rows out.
                recover.burn(self.home, self.store, table, flush, guilty=fault.segments)
                span.status("degraded")
                return
            except Exception:
                recover.burn(self.home, self.store, table, flush, guilty=())
                raise
            self._commit(table, flush, prepared)
            outcome = self._finish(table, index, flush, prepared)
            report.add(flush, outcome)
            telemetry.record("hyp_flush_seconds", time.monotonic() - began, hyp_dataset=dataset)
            telemetry.gauge("hyp_spool_bytes", reader.waiting(self.home, dataset).bytes, hyp_dataset=dataset)
            span.set(row_count=outcome.rows_written, rows_rejected=outcome.rows_rejected)
            telemetry.count("hyp_rows_written", outcome.rows_written, hyp_dataset=dataset)
            telemetry.count("hyp_rows_rejected", outcome.rows_rejected, hyp_dataset=dataset)

    def _commit(self, table: LakeTable, flush: Flush, prepared: Prepared) -> None:
        """From here on only a clear no burns the flush; after anything else recovery asks the lake what happened."""
        _before_commit()
        if prepared.files:
            try:
                table.commit(flush, prepared.files)
            except NotCommitted:
                recover.burn(self.home, self.store, table, flush, guilty=())
                raise

    def _finish(self, table: LakeTable, index: KeyIndex, flush: Flush, prepared: Prepared) -> Outcome:
        """The flush has landed. Whatever fails from here on, it stays reserved, and recovery finishes it."""
        outcome = prepared.outcome()
        try:
            if prepared.files:
                _after_commit()
                secure.secure(self.home, flush.dataset)
            recover.record(self.home, self.store, flush, outcome)
            _after_record()
            if prepared.files:
                index.add(flush.dataset, table.uuid, table.floor, prepared.keys)
            _before_remove()
            recover.remove_segments(self.home, flush)
            _after_remove()
        except OSError as error:
            raise Retryable(
                f"{flush.dataset}: the rows are in the lake, but {error}; the next flush finishes this one",
                kind="flush_unfinished",
            ) from error
        return outcome

    def _recorded(self, dataset: str) -> int:
        with self.store.reading() as connection:
            return max(flushes.high_water(connection, dataset).get(dataset, {}).values(), default=0)

    def _check_that_the_table_is_there(self, dataset: str) -> None:
        """Before a new one is made in the place of one that is lost."""
        if metadata.entry(self.home, dataset) is None and (recorded := self._recorded(dataset)):
            raise LakeError(
                f"rows of {dataset} up to sequence {recorded} were recorded, and the catalog {self.home.catalog} "
                "does not know the table: restore lake/ and state.db from one backup",
                kind="lake_rolled_back",
            )

    def _check_not_rolled_back(self, table: LakeTable, dataset: str) -> None:
        if (recorded := self._recorded(dataset)) > table.floor:
            raise LakeError(
                f"the lake holds {dataset} up to sequence {table.floor}, but {recorded} was recorded: it was rolled "
                "back or restored without its state. Restore both from one backup; or, to give those rows up:",
                kind="lake_rolled_back",
                repair="hyp verify --accept-rollback",
            )

    def _waiting(self, dataset: str) -> list[Segment]:
        """Sealed segments whose rows are not in the lake yet, oldest first; files of committed ones go now."""
        sealed = segments.sealed_segments(segments.folder(self.home, dataset))
        with self.store.reading() as connection:
            committed = flushes.committed_segments(connection, dataset, [segment.name for segment in sealed])
        for segment in sealed:
            if segment.name in committed:
                durable.remove(segment.path)
        return [segment for segment in sealed if segment.name not in committed]

    def _choose(self, waiting: list[Segment]) -> list[Segment]:
        """The oldest segments that fit into one flush. One that has failed twice goes alone, after all others."""
        if not waiting:
            return []
        with self.store.reading() as connection:
            attempts = flushes.attempts_of(connection, waiting[0].dataset)
        trusted = [segment for segment in waiting if attempts.get(segment.name, 0) < isolate.PATIENCE]
        if not trusted:
            return [_counted(waiting[0])]
        chosen: list[Segment] = []
        rows = size = 0
        for segment in map(_counted, trusted[:_MAX_SEGMENTS]):
            rows, size = rows + segment.rows, size + segment.bytes
            if chosen and (rows > self.limits.max_rows or size > self.limits.max_bytes):
                break
            chosen.append(segment)
        return chosen


def _counted(segment: Segment) -> Segment:
    """Its name says how many rows it has; its sequences are reserved for what is really in it."""
    try:
        return replace(segment, rows=segments.count_lines(segment.path))
    except OSError:
        return segment  # the build will say so, and hold it against this segment alone
