"""One dataset of a cache into the lake: one flush, one commit, whatever its size.

    survey · settle · reserve · build · pend · commit · secure · record

Whoever dies before the commit leaves a burnt range and nothing else; whoever dies after it, rows, marks and watermarks
that the next engine records together.
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

_before_pend = faults.point("takeover.pend.before-commit", "the rows of a take-over are built, nothing else is noted")
_after_pend = faults.point("takeover.pend.after-commit", "watermarks of a take-over are noted, no row is committed")

_TASK_BYTES = 16 << 20

Piece = TablePiece | SpoolPiece


@dataclass(frozen=True)
class TakeIn:
    landing: Landing
    dataset: Dataset
    found: Survey
    claims: Sequence[Claim]
    terms: Terms
    skip_unreadable: bool = False

    def run(self) -> tuple[DatasetOutcome, dict[Settled, int]]:
        """What was taken, and the watermark of each stream that goes on from the original's. With the table's turn."""
        outcome = begun(self.found)
        with self.landing.ready(self.dataset) as ready:
            # The files with a watermark first: what they have without a sequence was delivered, the rest was not.
            claimed = {name for claim in self.claims for name in claim.through}
            due = sorted(self.found.due, key=lambda found: found.partition.name not in claimed)
            numbering = number(due, self.found.spools)
            settled = self._settled(numbering, ready)
            if not self.found.due and not self.found.spools and not any(each.rises for each in settled):
                return outcome, {each: each.seq for each in settled}
            return self._land(ready, numbering, settled, outcome)

    def _settled(self, numbering: Numbering, ready: Ready) -> list[Settled]:
        with self.landing.store.reading() as connection:
            high_water = delivered.high_water_of(connection, self.dataset.name)
            bearings = Bearings(self.landing.home, self.dataset, ready.index, high_water)
            return delivered.settle(self.claims, self.found, numbering, bearings, connection)

    def _land(
        self, ready: Ready, numbering: Numbering, settled: Sequence[Settled], outcome: DatasetOutcome
    ) -> tuple[DatasetOutcome, dict[Settled, int]]:
        intake = Intake(self.landing, ready)
        name = self.dataset.name

        def tasks(flush: Flush, table: LakeTable) -> list[BuildTask]:
            return list(_tasks(name, pieces_of(numbering, flush.after, self.terms), flush, table))

        with telemetry.span("cache.flush", component="takeover", operation="import_cache", hyp_dataset=name) as span:
            flush, prepared = intake.build(name, numbering.size, tasks, self._judge)
            raised = self._pend(ready, flush, prepared, settled)
            landed = intake.land(flush, prepared, list(_marks(numbering, name, prepared.notes)))
            span.set(row_count=landed.rows_written, rows_rejected=landed.rows_rejected)
        _count(outcome, prepared, numbering, flush)
        telemetry.count("hyp_rows_written", landed.rows_written, hyp_dataset=name)
        telemetry.count("hyp_rows_rejected", landed.rows_rejected, hyp_dataset=name)
        return outcome, raised

    def _judge(self, prepared: Prepared) -> None:
        for report in prepared.notes:
            if report.error is not None and not self.skip_unreadable:
                raise CacheDamaged(report.error)

    def _pend(self, ready: Ready, flush: Flush, prepared: Prepared, settled: Sequence[Settled]) -> dict[Settled, int]:
        newest = prepared.outcome().high_water
        try:
            _before_pend()
            with self.landing.store.transaction() as connection:
                known = delivered.high_water_of(connection, self.dataset.name)
                raised = {
                    each: each.watermark(flush.after, max(newest.get(source, 0), known.get(source, 0)))
                    for each in settled
                    for source in (each.key.source,)
                }
                wanted = [Raised(each.key, each.address, seq) for each, seq in raised.items() if each.rises]
                takeovers.pend(connection, flush.id, wanted)
        except Exception:
            recover.burn(self.landing.home, self.landing.store, ready.table, flush, guilty=())
            raise
        _after_pend()
        return raised


def pieces_of(numbering: Numbering, after: int, terms: Terms) -> list[Piece]:
    pieces: list[Piece] = []
    for numbered in numbering.files:
        found = numbered.found
        if len(numbered.places):
            seqs = array("q", pc.add(numbered.places, after).to_pylist()).tobytes()
            pieces.append(
                TablePiece(
                    found.file.path, found.mark, dict(found.columns), found.file.deleted, seqs, found.file.bytes, terms
                )
            )
    pieces.sort(key=lambda piece: piece.first_seq)
    for spool, first in numbering.spools:
        pieces.append(SpoolPiece(spool.path, spool.name, spool.inode, spool.start, spool.size, after + first, terms))
    return pieces


def size_of(piece: Piece) -> int:
    return piece.bytes if isinstance(piece, TablePiece) else piece.size - piece.start


def _tasks(dataset: str, pieces: Sequence[Piece], flush: Flush, table: LakeTable) -> Iterator[BuildTask]:
    """Neighbours share a task, so that its files hold few days and a short range of sequences."""
    field_ids, own = dict(table.field_ids), table.gateway_id
    some: list[Piece] = []
    for place, piece in enumerate(pieces, 1):
        some.append(piece)
        size = sum(map(size_of, some))
        if size >= _TASK_BYTES or place == len(pieces):
            yield BuildTask(dataset, tuple(some), flush.id, table.data_root, field_ids, size, own)
            some = []


def _marks(numbering: Numbering, dataset: str, reports: Sequence[PieceReport]) -> Iterator[SourceMark]:
    """What was taken of each file, as far as it was."""
    read = {report.mark: report for report in reports if report.error is None}
    for numbered in numbering.files:
        found = numbered.found
        if found.mark in read or not len(numbered.places):
            yield _mark(dataset, found.mark, size=found.file.bytes, consumed=found.file.bytes)
    for spool, _ in numbering.spools:
        if (report := read.get(spool.name)) is not None:
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
    count_reports(outcome, prepared.notes)
    for file in prepared.files:
        outcome.tallies.setdefault(file.source, Tally()).written += file.rows
    outcome.seq_after, outcome.seq_last, outcome.flush_id = flush.after, flush.last, flush.id
    if prepared.purged:
        _count_purged(outcome, prepared, numbering, flush.after)


def _count_purged(outcome: DatasetOutcome, prepared: Prepared, numbering: Numbering, after: int) -> None:
    """By the source of their file; of a spool, by that of most of its rows."""
    purged = pa.array(sorted(prepared.purged), pa.int64())
    for numbered in numbering.files:
        inside = pc.sum(pc.is_in(pc.add(numbered.places, after), value_set=purged)).as_py()
        if inside:
            outcome.tallies[min(numbered.found.sources)].purged += inside
    tallies = {report.mark: report.tallies for report in prepared.notes}
    ends = [first for _, first in numbering.spools[1:]] + [numbering.size + 1]
    for (spool, first), end in zip(numbering.spools, ends, strict=True):
        inside = sum(after + first <= seq < after + end for seq in prepared.purged)
        if inside:
            of_file = tallies[spool.name]
            outcome.tallies[max(of_file, key=lambda source: of_file[source].found)].purged += inside


def begun(found: Survey) -> DatasetOutcome:
    """Rows in files that an earlier take-over took are found, and there already."""
    outcome = DatasetOutcome(found.dataset)
    for each in found.files:
        if each.taken and each.sources:
            tally = outcome.tallies.setdefault(min(each.sources), Tally())
            tally.found += each.file.rows
            tally.without_sequence += each.seqs.null_count
            outcome.rows_taken_before += each.file.rows
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
            outcome.left.append(report.error)
