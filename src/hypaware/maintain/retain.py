"""Retention: days that are over leave the table, by metadata alone; no data file is read or written.

One commit for all due days of a dataset, together with the table property `hyp.retained-from` (the first day that is
kept; it only rises, and imports bring back nothing older). Decided again under the turn in which it is committed, so
that no word of the user (`hyp export resend`) is missed while somebody else had that turn. What goes undelivered is in
the state before it goes; whoever finds such a word without the deed looks at the files to learn what happened.

@ref keeping#retention
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hypaware import faults, telemetry
from hypaware.lake import metadata, secure
from hypaware.lake.committer import Change
from hypaware.lake.metadata import RETAINED_FROM, DataFile
from hypaware.maintain import clock, holds
from hypaware.maintain.holds import Plan
from hypaware.maintain.retention_words import count, dropped, dropping, waiting, warnings
from hypaware.state import retention
from hypaware.state.retention import Hold

if TYPE_CHECKING:
    from hypaware.maintain.report import Report
    from hypaware.maintain.work import Work

_before_commit = faults.point(
    "maintain.retain.before-commit", "days are due, those that go undelivered are written down, all are in the table"
)
_after_commit = faults.point("maintain.retain.after-commit", "days have left the table, the state does not know")


def run(work: Work, report: Report) -> None:
    with telemetry.span(
        "maintain.retain", component="maintain", operation="retain", hyp_dataset=work.dataset.name, dry_run=work.dry_run
    ) as span:
        if trouble := clock.trouble(work.home, work.store, work.dataset, work.now):
            report.reasons.append(trouble)
            work.note(trouble)
            span.status("skipped")
            return
        if not work.dry_run:
            _settle(work)
        plan = _planned(work)
        if work.dry_run:
            work.foreseen.drop(plan.gone)
        else:
            plan = _retain(work, report, plan)
        _tell(work, report, plan)
        span.set(row_count=report.rows_expired, rows_held=report.rows_held)
        if plan.overdue:
            span.status("degraded")


def _planned(work: Work) -> Plan:
    return holds.plan(work.home, work.config, work.store, work.dataset, work.now)


def _retain(work: Work, report: Report, plan: Plan) -> Plan:
    """The plan that was carried out."""
    _remember(work, plan.known, plan.holds)
    if not (plan.gone or plan.rises):
        return plan
    work.check_cancelled()
    if work.out_of_time:
        report.reasons.append(f"no time was left to drop {count(_rows(plan.gone))}")
        return replace(plan, free=(), overdue=())
    with work.changing() as table:
        plan = _planned(work)
        _remember(work, plan.known, plan.holds)
        _announce(work, plan)
        _before_commit()
        properties = {RETAINED_FROM: str(plan.first_kept)} if plan.rises else {}
        if plan.gone or properties:
            table.change(Change("retain", plan.gone, properties=properties))
            _after_commit()
            secure.secure(work.home, work.dataset.name)
    _settle(work)
    _remember(work, plan.holds, [held.hold for held in plan.held])
    return plan


def _announce(work: Work, plan: Plan) -> None:
    """Loudly: the user was warned, and this is the moment."""
    if not plan.overdue:
        return
    drops = holds.announced(work.dataset.name, plan.overdue, work.now)
    with work.store.transaction() as connection:
        retention.announce(connection, drops)
    for drop in drops:
        telemetry.event(
            "maintain.retain.undelivered",
            status="degraded",
            hyp_dataset=drop.dataset,
            source=drop.source,
            day=drop.day.isoformat(),
            row_count=drop.rows,
            sinks=",".join(drop.sinks),
        )
    work.note(dropping(work.dataset.name, plan.overdue))


def _settle(work: Work) -> None:
    """What was announced has happened, or it has not."""
    with work.store.reading() as connection:
        open_drops = [drop for drop in retention.drops(connection, work.dataset.name) if not drop.landed]
    if open_drops:
        files = list(metadata.live_files(work.known))
        there = [drop for drop in open_drops if holds.is_still_there(drop, files)]
        with work.store.transaction() as connection:
            retention.settle(connection, [drop for drop in open_drops if drop not in there], there)


def _remember(work: Work, known: Sequence[Hold], wanted: Sequence[Hold]) -> None:
    """Since when rows are held: written down only when it changed."""
    if sorted(known) != sorted(wanted):
        with work.store.transaction() as connection:
            retention.set_holds(connection, work.dataset.name, wanted)


def _tell(work: Work, report: Report, plan: Plan) -> None:
    report.rows_expired += _rows(plan.gone)
    report.rows_held += sum(held.rows for held in plan.held)
    report.rows_without_time = plan.rows_without_time
    report.held += [held.as_json() for held in plan.held]
    report.drop(plan.gone)
    if plan.gone:
        days = len({file.day for file in plan.gone})
        report.reasons.append(dropped(_rows(plan.gone), days, plan.first_kept, dry_run=work.dry_run))
    if plan.overdue and work.dry_run:
        work.note(dropping(work.dataset.name, plan.overdue, dry_run=True))
    if plan.held:
        report.reasons.append(waiting(plan.held))
    for warning in warnings(work.dataset.name, plan.nearly_over(work.now)):
        work.note(warning)


def _rows(files: Iterable[DataFile]) -> int:
    return sum(file.rows for file in files)
