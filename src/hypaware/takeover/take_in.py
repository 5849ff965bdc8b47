"""Importing one dataset of a cache into the lake: one flush and one commit, whatever its size.

    survey · watermarks · reserve · build · record pending watermarks · commit · secure · record

A process killed before the commit leaves a burnt range and nothing else. After a kill behind the commit, the next
engine records rows, checkpoints and watermarks together.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from hypaware import faults, telemetry
from hypaware.lake import recover
from hypaware.lake.build import BuildTask
from hypaware.lake.committer import LakeTable
from hypaware.lake.intake import Intake
from hypaware.lake.landing import Landing
from hypaware.lake.prepare import Prepared, Ready
from hypaware.model.datasets import Dataset
from hypaware.state import takeovers
from hypaware.state.flushes import Flush
from hypaware.state.source_mark import SourceMark
from hypaware.state.takeovers import Raised
from hypaware.takeover import delivered
from hypaware.takeover.delivered import Bearings, Claim, Settled
from hypaware.takeover.judging import PieceReport, Terms
from hypaware.takeover.numbering import Numbering, number
from hypaware.takeover.outcome import DatasetOutcome, Tally
from hypaware.takeover.pieces import SpoolPiece, TablePiece
from hypaware.takeover.survey import PROVIDER, Survey
from hypaware.takeover.table import CacheDamaged

_before_pend = faults.point("takeover.pend.before-commit", "the rows of a takeover are built, nothing else is recorded")
_after_pend = faults.point(
    "takeover.pend.after-commit", "the watermarks of a takeover are recorded, no row is committed"
)

_TASK_BYTES = 16 << 20

Piece = TablePiece | SpoolPiece


@dataclass(frozen=True)
class TakeIn:
    landing: Landing
    dataset: Dataset
    survey: Survey
    claims: Sequence[Claim]
    terms: Terms
    skip_unreadable: bool = False

    def run(self) -> tuple[DatasetOutcome, dict[Settled, int]]:
        """Import the dataset under the table's lock; return its report and the watermark of each continued stream."""
        outcome = begun(self.survey)
        with self.landing.open_table(self.dataset) as ready:
            # Files with a watermark first: their rows without a sequence were delivered, those of other files were not.
            claimed = {name for claim in self.claims for name in claim.through}
            due = sorted(self.survey.due, key=lambda file: file.partition.name not in claimed)
            numbering = number(due, self.survey.spools)
            positions = self._resolve_watermarks(numbering, ready)
            if not self.survey.due and not self.survey.spools and not any(each.advances for each in positions):
                return outcome, {each: each.seq for each in positions}
            return self._commit(ready, numbering, positions, outcome)

    def _resolve_watermarks(self, numbering: Numbering, ready: Ready) -> list[Settled]:
        with self.landing.store.reading() as connection:
            high_water = delivered.high_water_of(connection, self.dataset.name)
            basis = Bearings(self.landing.home, self.dataset, ready.index, high_water)
            return delivered.settle(self.claims, self.survey, numbering, basis, connection)

    def _commit(
        self, ready: Ready, numbering: Numbering, positions: Sequence[Settled], outcome: DatasetOutcome
    ) -> tuple[DatasetOutcome, dict[Settled, int]]:
        intake = Intake(self.landing, ready)
        name = self.dataset.name

        def tasks(flush: Flush, table: LakeTable) -> list[BuildTask]:
            return list(_tasks(name, pieces_of(numbering, flush.after, self.terms), flush, table))

        with telemetry.span("cache.flush", component="takeover", operation="import_cache", hyp_dataset=name) as span:
            flush, prepared = intake.build(name, numbering.size, tasks, self._check_reports)
            new_watermarks = self._record_pending(ready, flush, prepared, positions)
            result = intake.commit(flush, prepared, list(_marks(numbering, name, prepared.reports)))
            span.set(row_count=result.rows_written, rows_rejected=result.rows_rejected)
        _count(outcome, prepared, numbering, flush)
        telemetry.count("hyp_rows_written", result.rows_written, hyp_dataset=name)
        telemetry.count("hyp_rows_rejected", result.rows_rejected, hyp_dataset=name)
        return outcome, new_watermarks

    def _check_reports(self, prepared: Prepared) -> None:
        for report in prepared.reports:
            if report.error is not None and not self.skip_unreadable:
                raise CacheDamaged(report.error)

    def _record_pending(
        self, ready: Ready, flush: Flush, prepared: Prepared, positions: Sequence[Settled]
    ) -> dict[Settled, int]:
        high_water = prepared.outcome().high_water
        try:
            _before_pend()
            with self.landing.store.transaction() as connection:
                committed = delivered.high_water_of(connection, self.dataset.name)
                new_watermarks = {
                    each: each.watermark(flush.after, max(high_water.get(source, 0), committed.get(source, 0)))
                    for each in positions
                    for source in (each.key.source,)
                }
                wanted = [Raised(each.key, each.address, seq) for each, seq in new_watermarks.items() if each.advances]
                takeovers.pend(connection, flush.id, wanted)
        except Exception:
            recover.burn(self.landing.home, self.landing.store, ready.table, flush, blamed=())
            raise
        _after_pend()
        return new_watermarks


def pieces_of(numbering: Numbering, after: int, terms: Terms) -> list[Piece]:
    pieces: list[Piece] = []
    for numbered in numbering.files:
        file = numbered.file
        if len(numbered.positions):
            seqs = array("q", pc.add(numbered.positions, after).to_pylist()).tobytes()
            pieces.append(
                TablePiece(
                    file.data_file.path,
                    file.mark,
                    dict(file.columns),
                    file.data_file.deleted,
                    seqs,
                    file.data_file.bytes,
                    terms,
                )
            )
    pieces.sort(key=lambda piece: piece.first_seq)
    for spool, first in numbering.spools:
        pieces.append(SpoolPiece(spool.path, spool.name, spool.inode, spool.start, spool.size, after + first, terms))
    return pieces


def size_of(piece: Piece) -> int:
    return piece.bytes if isinstance(piece, TablePiece) else piece.size - piece.start


def _tasks(dataset: str, pieces: Sequence[Piece], flush: Flush, table: LakeTable) -> Iterator[BuildTask]:
    """Group neighbouring pieces into tasks, so that each output file holds few days and a short range of sequences."""
    field_ids, gateway_id = dict(table.field_ids), table.gateway_id
    batch: list[Piece] = []
    for ordinal, piece in enumerate(pieces, 1):
        batch.append(piece)
        size = sum(map(size_of, batch))
        if size >= _TASK_BYTES or ordinal == len(pieces):
            yield BuildTask(dataset, tuple(batch), flush.id, table.data_root, field_ids, size, gateway_id)
            batch = []


def _marks(numbering: Numbering, dataset: str, reports: Sequence[PieceReport]) -> Iterator[SourceMark]:
    """Yield the checkpoint of each file that was read."""
    readable = {report.mark: report for report in reports if report.error is None}
    for numbered in numbering.files:
        file = numbered.file
        if file.mark in readable or not len(numbered.positions):
            yield _mark(dataset, file.mark, size=file.data_file.bytes, consumed=file.data_file.bytes)
    for spool, _ in numbering.spools:
        if (report := readable.get(spool.name)) is not None:
            yield _mark(dataset, spool.name, size=spool.size, consumed=report.consumed, prefix_hash=report.taken_hash)


def _mark(dataset: str, path: str, *, size: int, consumed: int, prefix_hash: str = "") -> SourceMark:
    return SourceMark(
        PROVIDER,
        dataset,
        path,
        inode=0,
        size=size,
        mtime_ns=0,
        consumed=consumed,
        prefix_hash=prefix_hash,
        held=(),
        quiet=True,
        left_out=(),
        since=None,
        until=None,
    )


def _count(outcome: DatasetOutcome, prepared: Prepared, numbering: Numbering, flush: Flush) -> None:
    count_reports(outcome, prepared.reports)
    for file in prepared.files:
        outcome.tallies.setdefault(file.source, Tally()).written += file.rows
    outcome.seq_after, outcome.seq_last, outcome.flush_id = flush.after, flush.last, flush.id
    if prepared.purged:
        _count_purged(outcome, prepared, numbering, flush.after)


def _count_purged(outcome: DatasetOutcome, prepared: Prepared, numbering: Numbering, after: int) -> None:
    """Count purged rows by the source of their file; in a spool, by the source of most of its rows."""
    purged = pa.array(sorted(prepared.purged), pa.int64())
    for numbered in numbering.files:
        count = pc.sum(pc.is_in(pc.add(numbered.positions, after), value_set=purged)).as_py()
        if count:
            outcome.tallies[min(numbered.file.sources)].purged += count
    tallies = {report.mark: report.tallies for report in prepared.reports}
    ends = [first for _, first in numbering.spools[1:]] + [numbering.size + 1]
    for (spool, first), end in zip(numbering.spools, ends, strict=True):
        count = sum(after + first <= seq < after + end for seq in prepared.purged)
        if count:
            tallies_of_file = tallies[spool.name]
            outcome.tallies[max(tallies_of_file, key=lambda source: tallies_of_file[source].found)].purged += count


def begun(survey: Survey) -> DatasetOutcome:
    """Start the report: rows in files that an earlier takeover imported count as found and present."""
    outcome = DatasetOutcome(survey.dataset)
    for each in survey.files:
        if each.taken and each.sources:
            tally = outcome.tallies.setdefault(min(each.sources), Tally())
            tally.found += each.data_file.rows
            tally.without_sequence += each.seqs.null_count
            outcome.rows_taken_before += each.data_file.rows
    return outcome


def count_reports(outcome: DatasetOutcome, reports: Sequence[PieceReport]) -> None:
    for report in reports:
        for source, tally in report.tallies.items():
            outcome.tallies.setdefault(source, Tally()).add(tally)
        for name, rows in report.set_aside.items():
            outcome.set_aside[name] = outcome.set_aside.get(name, 0) + rows
        outcome.not_rows += report.not_rows
        outcome.torn_bytes += report.torn_bytes
        if report.error is not None:
            outcome.unreadable.append(report.error)
