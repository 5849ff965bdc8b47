"""Commit the due sources to the lake, batch by batch."""

from __future__ import annotations

from typing import Protocol

from hypaware import telemetry
from hypaware.backfill import lots
from hypaware.backfill.lots import Lot, Origin
from hypaware.backfill.outcome import Outcome
from hypaware.backfill.pieces import SourceReport, refuse_faults
from hypaware.backfill.pinning import Survey
from hypaware.lake.build import BuildTask
from hypaware.lake.committer import LakeTable
from hypaware.lake.intake import Intake
from hypaware.lake.landing import Landing
from hypaware.lake.prepare import RowsAtFault
from hypaware.model import datasets
from hypaware.state.flushes import Flush


class Watch(Protocol):
    """Receives the progress of an import."""

    def before_batch(self) -> None:
        """Called before each batch; may raise to stop the import."""

    def after_batch(self, batch: Lot) -> None: ...


def take_in(landing: Landing, outcome: Outcome, found: Survey, origin: Origin, listener: Watch) -> None:
    with landing.open_table(datasets.get(origin.dataset)) as ready:
        for batch in lots.lots(found.due):
            _take_in_lot(Intake(landing, ready), batch, origin, outcome, listener)


def _take_in_lot(intake: Intake, batch: Lot, origin: Origin, outcome: Outcome, listener: Watch) -> None:
    """Commit a batch. If a source crashes its worker, isolate it by halving the batch, so that the others continue."""
    listener.before_batch()
    try:
        _LotIntake(batch, origin, outcome).run(intake)
    except RowsAtFault as fault:
        if len(batch.due) > 1:
            for half in batch.halves():
                _take_in_lot(intake, half, origin, outcome, listener)
            return
        outcome.fail_source(batch.due[0], fault)
    listener.after_batch(batch)


class _LotIntake:
    """One commit of an import."""

    def __init__(self, batch: Lot, origin: Origin, outcome: Outcome) -> None:
        self._batch = batch
        self._origin = origin
        self._outcome = outcome
        self._facts = {**outcome.facts, "hyp_dataset": origin.dataset}

    def run(self, intake: Intake) -> None:
        dataset = self._origin.dataset
        with telemetry.span("backfill.materialize", component="backfill", **self._facts) as span:
            flush, prepared = intake.build(
                dataset, self._batch.max_rows, self._tasks, lambda built: refuse_faults(built.reports)
            )
            reports: list[SourceReport] = prepared.reports
            span.set(row_count=sum(report.rows for report in reports), items=sum(report.items for report in reports))
        with telemetry.span("backfill.write", component="backfill", **self._facts) as span:
            landed = intake.commit(flush, prepared, [report.checkpoint for report in reports if report.checkpoint])
            span.set(row_count=landed.rows_written)
        self._outcome.add_sources(reports, prepared.duplicates | prepared.purged | prepared.settled)
        self._outcome.add_rows(
            landed.rows_written, landed.rows_duplicate, landed.rows_rejected, {file.day for file in prepared.files}
        )
        self._outcome.add_settled(landed.rows_settled)
        self._outcome.add_purged(landed.rows_purged)
        telemetry.count("hyp_rows_written", landed.rows_written, hyp_dataset=dataset)
        telemetry.count("hyp_rows_rejected", landed.rows_rejected, hyp_dataset=dataset)

    def _tasks(self, flush: Flush, table: LakeTable) -> list[BuildTask]:
        return lots.tasks(self._batch, self._origin, flush, table)
