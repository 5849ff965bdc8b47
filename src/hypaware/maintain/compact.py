"""Compaction: the many small files of a (source, day) become few, their rows in the order of their sequences.

What is due is told from metadata (`compact_plan`); tasks write the new files beside the old ones; one commit for a lot
puts them in their place, while flushes, deliveries and queries go on. A row stays what it was. Killed at any point, the
table has all rows once: before the commit the new files are named by nothing, and go with the next expiry; after it the
old ones do. A part whose files cannot be read, or whose rows do not add up, is told and left as it was.

Rows that were recorded before their own id was known, and have met it since, get it here (`settling`).

@ref keeping#compaction
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date

from hypaware import faults, telemetry
from hypaware.errors import Cancelled, LakeError, Retryable
from hypaware.lake import metadata
from hypaware.lake.build import BuildFailure, Built
from hypaware.lake.committer import Change, LakeTable, NotCommitted
from hypaware.lake.metadata import DataFile
from hypaware.lake.partitions import Place
from hypaware.lake.rewrite import RewriteTask, Rewritten
from hypaware.maintain import compact_plan, settling
from hypaware.maintain.compact_plan import Partition, Rewriting
from hypaware.maintain.report import Report
from hypaware.maintain.twins import TwinlessTask
from hypaware.maintain.work import Work, discard

_after_write = faults.point("maintain.compact.after-write", "rewritten files lie beside the old ones, unnamed")
_before_commit = faults.point("maintain.compact.before-commit", "rewritten files are checked, and not committed")
_after_commit = faults.point("maintain.compact.after-commit", "they took the old ones' place, which is not durable")

# What several tasks left of one day comes together in the next pass; flushes must not keep a run going for ever.
_PASSES = 8


def settle(work: Work, report: Report) -> None:
    """Only what waits to be settled, all of it."""
    _Compaction(work, report, settling_only=True).run()


def run(work: Work, report: Report) -> None:
    with telemetry.span(
        "maintain.compact", component="maintain", operation="compact", hyp_dataset=work.dataset.name
    ) as span:
        compaction = _Compaction(work, report)
        try:
            compaction.run()
        finally:
            done = compaction.done.values()
            span.set(
                files_before=sum(each.files_in for each in done),
                files_after=sum(each.files_out for each in done),
                bytes_before=sum(each.bytes_in for each in done),
                bytes_after=sum(each.bytes_out for each in done),
                twins_removed=report.twins_removed,
                partitions_left=report.partitions_left,
            )
            if compaction.failed:
                span.status("degraded")


@dataclass
class _Done:
    """What has become of the files of one source."""

    days: set[date] = field(default_factory=set)
    files_in: int = 0
    files_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0

    def add(self, rewriting: Rewriting, built: Built, run_id: str) -> None:
        """Files that an earlier pass of this run made have come and gone."""
        taken = _of_others(rewriting, run_id)
        taken_bytes = sum(file.bytes for file in taken)
        self.days.add(rewriting.day)
        self.files_in += len(taken)
        self.files_out += len(built.files) - (len(rewriting.files) - len(taken))
        self.bytes_in += taken_bytes
        self.bytes_out += sum(file.bytes for file in built.files) - (rewriting.bytes - taken_bytes)


class _Compaction:
    def __init__(self, work: Work, report: Report, *, settling_only: bool = False) -> None:
        self._pending = settling.begin(work)
        self._settling_only = settling_only
        self._work = work
        self._report = report
        self._name = work.dataset.name
        self.done: defaultdict[str, _Done] = defaultdict(_Done)
        self.failed: set[Partition] = set()

    def run(self) -> None:
        rewritings = self._due()
        if self._work.dry_run:
            self._tell_what_would_be_done(rewritings)
            return
        try:
            for _ in range(_PASSES):
                left = self._rewrite_all(rewritings) if rewritings else []
                self._report.partitions_left = compact_plan.partitions(left)
                if left or not (rewritings := self._due()):
                    break
        finally:
            self._tell()
            settling.finish(self._work, self._pending)

    def _due(self) -> list[Rewriting]:
        known = self._work.known
        if known.current and any(manifest.deletes for manifest in metadata.manifests(known.current)):
            raise LakeError(
                f"{self._name}: another program has written delete files, so its files cannot be compacted one by one",
                kind="delete_files",
                repair=f"hyp maintain {self._name} --rebuild",
            )
        files = self._work.foreseen.left_of(metadata.remembered_files(known))
        if self._settling_only:
            files = [file for file in files if self._pending.concerns(file)]
        found = compact_plan.due(files, force=self._work.force, concerned=self._pending.concerns)
        return [rewriting for rewriting in found if rewriting.partition not in self.failed]

    def _rewrite_all(self, rewritings: list[Rewriting]) -> list[Rewriting]:
        """What is left of them, because no time is."""
        # It may have to be brought to the dataset's columns first, which is a commit.
        with self._work.changing() as found:
            table = found
        begun = 0
        for lot in compact_plan.lots(rewritings):
            self._work.check_cancelled()
            if self._work.out_of_time:
                break
            self._work.progress(f"compacting {self._name}", begun, len(rewritings))
            self._rewrite(lot, table)
            begun += len(lot)
        return rewritings[begun:]

    def _rewrite(self, lot: Sequence[Rewriting], table: LakeTable) -> None:
        tasks = [self._task(rewriting, table) for rewriting in lot]
        results = self._work.lake.run(tasks)
        if len(lot) > 1 and all(isinstance(result, BuildFailure) for result in results):
            # A task that takes its worker down looks like this: alone, each can speak for itself.
            results = [result for task in tasks for result in self._work.lake.run([task])]
        _after_write()
        if stopped := _all_surroundings(results):
            raise Retryable(f"{self._name}: compaction has stopped: {stopped}", kind="compaction_stopped")
        sound = [
            (rewriting, result)
            for rewriting, result in zip(lot, results, strict=True)
            if not isinstance(result, BuildFailure) and self._is_whole(rewriting, result)
        ]
        for rewriting, result in zip(lot, results, strict=True):
            if isinstance(result, BuildFailure):
                self._fail(rewriting, result.reason)
        if sound:
            self._commit(sound)

    def _commit(self, sound: Sequence[tuple[Rewriting, Built]]) -> None:
        gone = [file for rewriting, _ in sound for file in rewriting.files]
        come = [file for _, built in sound for file in built.files]
        _before_commit()
        try:
            change = Change("compact", gone, come, summary={"hyp.maintain": self._work.id})
            self._work.commit(change, landed=_after_commit)
        except Cancelled:
            discard(come)
            raise
        except NotCommitted as error:
            discard(come)
            for rewriting, _ in sound:
                self._fail(rewriting, error.message)
            return
        for rewriting, built in sound:
            self._pending.carried_out(rewriting.files)
            self.done[rewriting.source].add(rewriting, built, self._work.id)
            self._report.rewrite(_of_others(rewriting, self._work.id))
            self._report.twins_removed += len(_balance(built).left_out)
        self._report.partitions_compacted = sum(len(each.days) for each in self.done.values())

    def _task(self, rewriting: Rewriting, table: LakeTable) -> TwinlessTask:
        place = Place(table.data_root, self._work.id, rewriting.files[0].min_seq or 0)
        paths = tuple(file.path for file in rewriting.files)
        task = RewriteTask(
            self._name,
            rewriting.source,
            rewriting.day.isoformat(),
            paths,
            place,
            table.field_ids,
            amend=self._pending.amendment(rewriting.files),
        )
        return TwinlessTask(task, table.gateway_id)

    def _is_whole(self, rewriting: Rewriting, built: Built) -> bool:
        """Whether all rows that the table knows of went in, and the same ones came out."""
        balance = _balance(built)
        if balance.balanced and balance.rows_in == rewriting.rows == sum(file.rows for file in built.files) + len(
            balance.left_out
        ):
            return True
        discard(built.files)
        self._fail(rewriting, f"{rewriting.rows} rows should have been rewritten, and that did not add up: {balance}")
        return False

    def _fail(self, rewriting: Rewriting, reason: str) -> None:
        self.failed.add(rewriting.partition)
        self._report.errors.append(f"{self._name}, {rewriting.source} on {rewriting.day} is not compacted: {reason}")

    def _tell(self) -> None:
        for source, done in sorted(self.done.items()):
            self._report.reasons.append(
                f"compacted {_days(done.days)} of {source}: {done.files_in:,} files became {done.files_out:,}"
            )
        for path in self._pending.damaged:
            self._report.errors.append(
                f"{self._name}: {path.name} of the settlements cannot be read and was removed; the rows keep the ids "
                "that they were recorded under, unless their transcripts are imported again"
            )
        if twins := self._report.twins_removed:
            self._work.note(f"{self._name}: {twins:,} rows that were there twice are there once now")
        if left := self._report.partitions_left:
            self._report.reasons.append(f"{left:,} more are due, no time was left for them")
        self._tell_unnumbered()

    def _tell_what_would_be_done(self, rewritings: Sequence[Rewriting]) -> None:
        self._work.foreseen.rewrite(rewritings)
        self._report.rewrite(file for each in rewritings for file in each.files)
        self._report.partitions_left = compact_plan.partitions(rewritings)
        for source in sorted({each.source for each in rewritings}):
            own = [each for each in rewritings if each.source == source]
            files, size = sum(len(each.files) for each in own), sum(each.bytes for each in own)
            days = _days({each.day for each in own})
            self._report.reasons.append(f"would compact {days} of {source}: {files:,} files, {size / 1e6:,.1f} MB")
        self._tell_unnumbered()

    def _tell_unnumbered(self) -> None:
        if odd := sum(not compact_plan.is_numbered(file) for file in self._work.files()):
            self._report.reasons.append(f"{odd:,} files do not say which sequences they hold and are left as they are")


def _of_others(rewriting: Rewriting, run_id: str) -> list[DataFile]:
    """Those of its files that were there before this run."""
    return [file for file in rewriting.files if not file.path.name.startswith(run_id)]


def _balance(built: Built) -> Rewritten:
    (found,) = built.notes
    assert isinstance(found, Rewritten)
    return found


def _all_surroundings(results: Iterable[Built | BuildFailure]) -> str | None:
    """The reason, if nothing could be rewritten and no row is to blame: a full disk, workers that do not start."""
    failures = [result if isinstance(result, BuildFailure) else None for result in results]
    if all(failure is not None and failure.surroundings for failure in failures):
        return failures[0].reason if failures[0] else None
    return None


def _days(days: set[date]) -> str:
    return f"{len(days):,} {'day' if len(days) == 1 else 'days'}"
