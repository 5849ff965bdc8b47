"""Importing one dataset of a cache into the lake: one flush and one commit, whatever its size.

    survey · watermarks · reserve · build · record pending watermarks · commit · secure · record

A process killed before the commit leaves a burnt range and nothing else. After a kill behind the commit, the next
engine records rows, checkpoints and watermarks together.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from hypaware import faults, telemetry
from hypaware.lake import commit
from hypaware.lake.build import BuildTask
from hypaware.lake.prepare import PreparedFlush, prepare_flush
from hypaware.lake.table import LakeTable, OpenTable
from hypaware.state import flushes, streams
from hypaware.state.flushes import Flush
from hypaware.state.sources import SourceCheckpoint
from hypaware.state.streams import PendingWatermark
from hypaware.takeover import watermarks
from hypaware.takeover.cache import PROVIDER, CacheSurvey
from hypaware.takeover.report import DatasetTakeoverReport, SourceTally
from hypaware.takeover.rows import PieceReport, RowNumbering, SpoolPiece, TablePiece, TakeoverTerms, number_rows
from hypaware.takeover.table import CacheDamaged
from hypaware.takeover.watermarks import StreamPosition, WatermarkBasis, WatermarkClaim

_before_pend = faults.crash_point(
    "takeover.pend.before-commit", "the rows of a takeover are built, nothing else is recorded"
)
_after_pend = faults.crash_point(
    "takeover.pend.after-commit", "the watermarks of a takeover are recorded, no row is committed"
)
_TASK_BYTES = 16 << 20
TakeoverPiece = TablePiece | SpoolPiece


def import_dataset(
    target: OpenTable,
    survey: CacheSurvey,
    claims: Sequence[WatermarkClaim],
    terms: TakeoverTerms,
    *,
    skip_unreadable: bool,
) -> tuple[DatasetTakeoverReport, dict[StreamPosition, int]]:
    """Import the dataset under the table's lock; return its report and the watermark of each continued stream."""
    outcome, name = start_report(survey), target.dataset.name
    # Files with a watermark first: their rows without a sequence were delivered, those of other files were not.
    claimed = {partition for claim in claims for partition in claim.through}
    due = sorted(survey.due, key=lambda file: file.partition.name not in claimed)
    numbering = number_rows(due, survey.spools)
    with target.store.reading() as connection:
        high_water = flushes.load_high_water(connection, name).get(name, {})
        basis = WatermarkBasis(target.home, target.dataset, target.index, high_water)
        positions = watermarks.resolve_positions(claims, survey, numbering, basis, connection)
    if not survey.due and not survey.spools and not any(each.advances for each in positions):
        return outcome, {each: each.seq for each in positions}
    with telemetry.span("cache.flush", component="takeover", operation="import_cache", hyp_dataset=name) as span:
        flush = commit.reserve_import(target, numbering.size)
        with commit.discard_on_error(target, flush):
            pieces = build_pieces(numbering, flush.after, terms)
            prepared = prepare_flush(target, flush, list(_build_tasks(name, pieces, flush, target.table)))
            for report in prepared.reports:
                if report.error is not None and not skip_unreadable:
                    raise CacheDamaged(report.error)
            new_watermarks = _record_pending(target, flush, prepared, positions)
        checkpoints = list(_checkpoints(numbering, name, prepared.reports))
        result = commit.commit_flush(target, flush, prepared, checkpoints)
        span.set(row_count=result.rows.written, rows_rejected=result.rows.rejected)
    _count_results(outcome, prepared, numbering, flush)
    telemetry.count("hyp_rows_written", result.rows.written, hyp_dataset=name)
    telemetry.count("hyp_rows_rejected", result.rows.rejected, hyp_dataset=name)
    return outcome, new_watermarks


def _record_pending(
    target: OpenTable, flush: Flush, prepared: PreparedFlush, positions: Sequence[StreamPosition]
) -> dict[StreamPosition, int]:
    high_water = prepared.outcome().high_water
    _before_pend()
    with target.store.transaction() as connection:
        committed = flushes.load_high_water(connection, flush.dataset).get(flush.dataset, {})
        new_watermarks = {
            each: each.watermark(flush.after, max(high_water.get(source, 0), committed.get(source, 0)))
            for each in positions
            for source in (each.key.source,)
        }
        wanted = [
            PendingWatermark(each.key, each.address, seq) for each, seq in new_watermarks.items() if each.advances
        ]
        streams.add_pending_watermarks(connection, flush.id, wanted)
    _after_pend()
    return new_watermarks


def build_pieces(numbering: RowNumbering, after: int, terms: TakeoverTerms) -> list[TakeoverPiece]:
    pieces: list[TakeoverPiece] = []
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


def piece_size(piece: TakeoverPiece) -> int:
    return piece.bytes if isinstance(piece, TablePiece) else piece.size - piece.start


def _build_tasks(dataset: str, pieces: Sequence[TakeoverPiece], flush: Flush, table: LakeTable) -> Iterator[BuildTask]:
    """Group neighbouring pieces into tasks, so that each output file holds few days and a short range of sequences."""
    field_ids, gateway_id = dict(table.field_ids), table.gateway_id
    batch: list[TakeoverPiece] = []
    for ordinal, piece in enumerate(pieces, 1):
        batch.append(piece)
        size = sum(map(piece_size, batch))
        if size >= _TASK_BYTES or ordinal == len(pieces):
            yield BuildTask(dataset, tuple(batch), flush.id, table.data_root, field_ids, size, gateway_id)
            batch = []


def _checkpoints(numbering: RowNumbering, dataset: str, reports: Sequence[PieceReport]) -> Iterator[SourceCheckpoint]:
    """Yield the checkpoint of each file that was read."""
    readable = {report.mark: report for report in reports if report.error is None}
    for numbered in numbering.files:
        file = numbered.file
        if file.mark in readable or not len(numbered.positions):
            yield _checkpoint(dataset, file.mark, size=file.data_file.bytes, consumed=file.data_file.bytes)
    for spool, _ in numbering.spools:
        if (report := readable.get(spool.name)) is not None:
            yield _checkpoint(
                dataset, spool.name, size=spool.size, consumed=report.consumed, prefix_hash=report.taken_hash
            )


def _checkpoint(dataset: str, path: str, *, size: int, consumed: int, prefix_hash: str = "") -> SourceCheckpoint:
    return SourceCheckpoint(
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


def _count_results(
    outcome: DatasetTakeoverReport, prepared: PreparedFlush, numbering: RowNumbering, flush: Flush
) -> None:
    count_reports(outcome, prepared.reports)
    for file in prepared.files:
        outcome.tallies.setdefault(file.source, SourceTally()).written += file.rows
    outcome.seq_after, outcome.seq_last, outcome.flush_id = flush.after, flush.last, flush.id
    if prepared.purged:
        _count_purged(outcome, prepared, numbering, flush.after)


def _count_purged(outcome: DatasetTakeoverReport, prepared: PreparedFlush, numbering: RowNumbering, after: int) -> None:
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


def start_report(survey: CacheSurvey) -> DatasetTakeoverReport:
    """Start the report: rows in files that an earlier takeover imported count as found and present."""
    outcome = DatasetTakeoverReport(survey.dataset)
    for each in survey.files:
        if each.taken and each.sources:
            tally = outcome.tallies.setdefault(min(each.sources), SourceTally())
            tally.found += each.data_file.rows
            tally.without_sequence += each.seqs.null_count
            outcome.rows_taken_before += each.data_file.rows
    return outcome


def count_reports(outcome: DatasetTakeoverReport, reports: Sequence[PieceReport]) -> None:
    for report in reports:
        for source, tally in report.tallies.items():
            outcome.tallies.setdefault(source, SourceTally()).add(tally)
        for name, rows in report.set_aside.items():
            outcome.set_aside[name] = outcome.set_aside.get(name, 0) + rows
        outcome.not_rows += report.not_rows
        outcome.torn_bytes += report.torn_bytes
        if report.error is not None:
            outcome.unreadable.append(report.error)
