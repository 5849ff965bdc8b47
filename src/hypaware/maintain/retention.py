"""Retention: remove days older than configured from the table by metadata alone; no data file is read or written.

One commit removes all due days of a dataset and sets the table property `hyp.retained-from`, the first day kept. That
day only advances, and imports never bring back older rows; but a day in the future, which a wrong clock has set, is
revoked, and imports may restore the rows that were dropped with it. Days that are dropped undelivered are recorded in
the state before they are dropped. A record without a completed drop is resolved by looking at the table's files.

@ref keeping#retention
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import date

from hypaware import faults, telemetry
from hypaware.iceberg import fsync, metadata
from hypaware.iceberg.metadata import RETAINED_FROM_PROPERTY
from hypaware.lake import dedupe, health, lost_rows
from hypaware.lake.lost_rows import LostRange
from hypaware.lake.table import LakeTable, TableChange
from hypaware.maintain import clock_witnesses, retention_plan
from hypaware.maintain.context import MaintenanceContext, MaintenanceReport, count_by_partition
from hypaware.maintain.purge import other_machines
from hypaware.maintain.retention_plan import RetentionPlan
from hypaware.state import flushes, retention, streams
from hypaware.state.retention import RetentionHold
from hypaware.text import format_count

_before_commit = faults.crash_point(
    "maintain.retain.before-commit", "due days are still in the table, undelivered ones are recorded"
)
_after_commit = faults.crash_point(
    "maintain.retain.after-commit", "due days are removed from the table, the state does not know"
)


def apply_retention(context: MaintenanceContext, report: MaintenanceReport) -> None:
    name, dry_run = context.dataset.name, context.dry_run
    with telemetry.span(
        "maintain.retain", component="maintain", operation="retain", hyp_dataset=name, dry_run=dry_run
    ) as span:
        keeps_all = retention_plan.first_day_kept(context.config, context.dataset, context.now) is None
        warning = clock_witnesses.clock_warning(context.home, context.store, context.dataset, context.now)
        if warning and not keeps_all:
            report.reasons.append(warning)
            context.note(warning)
            span.status("skipped")
            return
        if not context.dry_run:
            _resolve_drops(context)
        plan = _plan(context)
        if context.dry_run:
            context.effects.removed.update(plan.to_drop)
            context.effects.snapshots += bool(plan.to_drop)
        else:
            plan = _retain(context, report, plan)
        _report(context, report, plan)
        span.set(row_count=report.rows_expired, rows_held=report.rows_held)
        if plan.overdue:
            span.status("degraded")


def _plan(context: MaintenanceContext) -> RetentionPlan:
    return retention_plan.plan_retention(context.home, context.config, context.store, context.dataset, context.now)


def _retain(context: MaintenanceContext, report: MaintenanceReport, plan: RetentionPlan) -> RetentionPlan:
    """Carry out the plan and return the plan that was carried out."""
    _save_holds(context, plan.known_holds, plan.holds)
    if not (plan.to_drop or plan.advances):
        return plan
    context.check_cancelled()
    if context.out_of_time:
        report.reasons.append(f"{format_count(plan.rows_to_drop, 'row')} due to be dropped, but the time was up")
        return replace(plan, droppable=(), overdue=())
    with context.lock_table() as table:
        # Made again, to respect what the user changed during the wait (`hyp export resend`).
        plan = _plan(context)
        _save_holds(context, plan.known_holds, plan.holds)
        if plan.overdue:
            _announce(context, plan)
        if plan.revokes:
            context.note(f"warning: the first day kept of {context.dataset.name} is in the future: the clock was ahead")
            _readmit_dropped_rows(context, table)
        _before_commit()
        properties = {RETAINED_FROM_PROPERTY: str(plan.first_day)} if plan.advances else {}
        if plan.to_drop or properties:
            table.replace_files(TableChange("retain", plan.to_drop, properties=properties))
            _after_commit()
            fsync.fsync_commit(context.home, context.dataset.name)
    _resolve_drops(context)
    _save_holds(context, plan.holds, [held.hold for held in plan.held])
    return plan


def readmit_days(context: MaintenanceContext, report: MaintenanceReport) -> None:
    """Reset the first day kept to the configured period, so that imports may restore later days that were dropped."""
    first_day = retention_plan.first_day_kept(context.config, context.dataset, context.now) or date.min
    if context.table_metadata.properties.get(RETAINED_FROM_PROPERTY, "") <= str(first_day):
        report.reasons.append("retention has dropped no day that the configured period keeps")
        return
    would = "would reset" if context.dry_run else "reset"
    report.reasons.append(
        f"{would} the first day kept, which was {context.table_metadata.properties[RETAINED_FROM_PROPERTY]}"
    )
    if not context.dry_run:
        with context.lock_table() as table:
            _readmit_dropped_rows(context, table)
            _before_commit()
            table.replace_files(TableChange("retain", (), properties={RETAINED_FROM_PROPERTY: str(first_day)}))
            _after_commit()
            fsync.fsync_commit(context.home, context.dataset.name)


def _readmit_dropped_rows(context: MaintenanceContext, table: LakeTable) -> None:
    """Let imports restore rows that were dropped, under their sequences."""
    name = context.dataset.name
    health.check_tables(context.home)
    with context.store.reading() as connection:
        known = [each for each in streams.list_streams(connection) if each.key.dataset == name]
    delivered = [each.watermark or 0 for each in known if each.key.sink in context.config.sinks]
    lost = LostRange(1, table.floor, min(delivered, default=table.floor))
    with closing(dedupe.open_index(context.home, context.lake, table, context.dataset)) as index:
        lost_rows.mark_lost(context.home, index, [lost])
    other_machines.note_lost(context.home, context.store, name, lost)
    with context.store.transaction() as connection:
        flushes.forget_checkpoints(connection, name)
    context.note(
        f"the first day kept of {name} is reset; to import the dropped rows that your clients still have, run: "
        "hyp backfill"
    )


def _announce(context: MaintenanceContext, plan: RetentionPlan) -> None:
    """Record days that are dropped undelivered, and warn about them."""
    drops = retention_plan.list_undelivered_drops(context.dataset.name, plan.overdue, context.now)
    with context.store.transaction() as connection:
        retention.announce_drops(connection, drops)
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
    context.note(retention_plan.describe_undelivered_drop(context.dataset.name, plan.overdue))


def _resolve_drops(context: MaintenanceContext) -> None:
    """Resolve recorded drops: they either happened or did not."""
    with context.store.reading() as connection:
        open_drops = [drop for drop in retention.list_drops(connection, context.dataset.name) if not drop.landed]
    if open_drops:
        files = list(metadata.iter_live_files(context.table_metadata))
        still_present = [drop for drop in open_drops if retention_plan.is_drop_outstanding(drop, files)]
        with context.store.transaction() as connection:
            landed = [drop for drop in open_drops if drop not in still_present]
            retention.resolve_drops(connection, landed, still_present)


def _save_holds(
    context: MaintenanceContext, known: Sequence[RetentionHold], holds_now: Sequence[RetentionHold]
) -> None:
    """Record since when rows are held, if that changed."""
    if sorted(known) != sorted(holds_now):
        with context.store.transaction() as connection:
            retention.set_holds(connection, context.dataset.name, holds_now)


def _report(context: MaintenanceContext, report: MaintenanceReport, plan: RetentionPlan) -> None:
    report.rows_expired += plan.rows_to_drop
    report.rows_held += plan.rows_held
    report.rows_without_time = plan.rows_without_time
    report.held += [held.as_json() for held in plan.held]
    count_by_partition(report.dropped, plan.to_drop, "bytes", "rows")
    if plan.to_drop:
        verb = "would drop" if context.dry_run else "dropped"
        rows = format_count(plan.rows_to_drop, "row")
        days = format_count(len({file.day for file in plan.to_drop}), "day")
        report.reasons.append(f"{verb} {rows} of {days} before {plan.first_day}")
    if plan.overdue and context.dry_run:
        context.note(retention_plan.describe_undelivered_drop(context.dataset.name, plan.overdue, dry_run=True))
    if plan.held:
        report.reasons.append(retention_plan.describe_holds(plan.held))
    for warning in retention_plan.describe_expiring(context.dataset.name, plan, context.now):
        context.note(warning)
