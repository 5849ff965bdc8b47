"""From what is due to what is in the lake, one lot after the other, each in one commit."""

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
    """Whoever follows an import."""

    def before(self) -> None:
        """A commit begins; may stop the import."""

    def landed(self, lot: Lot) -> None: ...


def take_in(landing: Landing, outcome: Outcome, found: Survey, origin: Origin, watch: Watch) -> None:
    """Commits what is due."""
    with landing.ready(datasets.get(origin.dataset)) as ready:
        for lot in lots.lots(found.due):
            _take_in_lot(Intake(landing, ready), lot, origin, outcome, watch)


def _take_in_lot(intake: Intake, lot: Lot, origin: Origin, outcome: Outcome, watch: Watch) -> None:
    """A source that takes its worker down is singled out by halving, so that nothing beside or behind it waits."""
    watch.before()
    try:
        _LotIntake(lot, origin, outcome).run(intake)
    except RowsAtFault as fault:
        if len(lot.due) > 1:
            for half in lot.halves():
                _take_in_lot(intake, half, origin, outcome, watch)
            return
        outcome.gave_up(lot.due[0], fault)
    watch.landed(lot)


class _LotIntake:
    """One commit of an import."""

    def __init__(self, lot: Lot, origin: Origin, outcome: Outcome) -> None:
        self._lot = lot
        self._origin = origin
        self._outcome = outcome
        self._facts = {**outcome.facts, "hyp_dataset": origin.dataset}

    def run(self, intake: Intake) -> None:
        dataset = self._origin.dataset
        with telemetry.span("backfill.materialize", component="backfill", **self._facts) as span:
            flush, prepared = intake.build(
                dataset, self._lot.blocks, self._tasks, lambda built: refuse_faults(built.notes)
            )
            reports: list[SourceReport] = prepared.notes
            span.set(row_count=sum(report.rows for report in reports), items=sum(report.items for report in reports))
        with telemetry.span("backfill.write", component="backfill", **self._facts) as span:
            landed = intake.land(flush, prepared, [report.mark for report in reports if report.mark is not None])
            span.set(row_count=landed.rows_written)
        self._outcome.read(reports, prepared.duplicates | prepared.purged | prepared.settled)
        self._outcome.wrote(
            landed.rows_written, landed.rows_duplicate, landed.rows_rejected, {file.day for file in prepared.files}
        )
        self._outcome.settled(landed.rows_settled)
        self._outcome.kept_out(landed.rows_purged)
        telemetry.count("hyp_rows_written", landed.rows_written, hyp_dataset=dataset)
        telemetry.count("hyp_rows_rejected", landed.rows_rejected, hyp_dataset=dataset)

    def _tasks(self, flush: Flush, table: LakeTable) -> list[BuildTask]:
        return lots.tasks(self._lot, self._origin, flush, table)
