"""The engine's jobs `export` and `replay`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from hypaware.engine.jobs import JobContext
from hypaware.errors import Cancelled, HypError
from hypaware.export import configured
from hypaware.export import replay as replaying
from hypaware.export.driver import Driver, Terms
from hypaware.export.lake_rows import LakeRows
from hypaware.export.spark_thread import SparkThread
from hypaware.export.standing import Standing, standings
from hypaware.lake import counting
from hypaware.lake.jobs import flush_datasets, remember
from hypaware.opening import open_home
from hypaware.spool import reader

if TYPE_CHECKING:
    from hypaware.opening import OpenHome

_PROGRESS_SECONDS = 0.5


def export(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Deliver to the sinks.

    args: `sinks` (all if None), `max_wait` (seconds), `budget` (intents per stream, None for all), `patient`.
    """
    sinks = configured.chosen(context.config, args.get("sinks") or ())
    opened = open_home(context.home)
    if opened.rebuilt:
        context.note(opened.rebuilt)
    try:
        # The lake records this incarnation before anything leaves under it: if state and mirror are lost, the
        # destination must still be queried under it.
        remember(context, opened.identity)
        errors = _flush_first(context, sinks, patient=bool(args.get("patient")))
        thread = SparkThread(context)
        options = Terms(float(args.get("max_wait", 60.0)), args.get("budget"), bool(args.get("patient")))
        progress = _Progress(context, opened, sinks)
        driver = Driver(opened, context.config, LakeRows(context.home), options, thread.on_spark, progress.add)
        reports = thread.run(driver.deliver(sinks))
    finally:
        opened.store.close()
    if errors:
        raise errors[0]
    return {"sinks": [report.as_json() for report in reports]}


def replay(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Send a dead letter again. args: its `id`. Result: `{id, status: delivered | refused | failed, reason?}`."""
    opened = open_home(context.home)
    try:
        thread = SparkThread(context)
        driver = Driver(opened, context.config, LakeRows(context.home), Terms(), thread.on_spark)
        return thread.run(replaying.replay(driver, args["id"]))
    finally:
        opened.store.close()


class _Progress:
    """Progress of all sinks together, reported from the loop's thread at most twice a second."""

    def __init__(self, context: JobContext, opened: OpenHome, sinks: list[str]) -> None:
        self._context = context
        self._reported_at = time.monotonic()
        self._rows = self._bytes = 0
        lag = {name: sum(map(self._lag, _configured_streams(context, opened, name))) for name in sinks}
        self._total = sum(lag.values())
        self._message = f"delivering to {', '.join(name for name in sinks if lag[name]) or ', '.join(sinks)}"
        self._report()

    def add(self, _sink: str, rows: int, sent: int) -> None:
        self._rows += rows
        self._bytes += sent
        if time.monotonic() - self._reported_at >= _PROGRESS_SECONDS:
            self._report()

    def _report(self) -> None:
        self._reported_at = time.monotonic()
        total = max(self._total, self._rows)
        self._context.progress(self._message, self._rows, total, unit="rows", rows=self._rows, bytes=self._bytes)

    def _lag(self, state: Standing) -> int:
        key, after = state.key, state.watermark or 0
        try:
            return counting.rows_between(self._context.home, key.dataset, key.source, after, state.high_water)
        except (OSError, ValueError):
            return 0  # a damaged lake: the round of that stream reports it


def _flush_first(context: JobContext, sinks: list[str], *, patient: bool) -> list[HypError]:
    """Commit the spooled rows of the delivered datasets. A failure does not stop the delivery of committed rows.

    A `patient` round leaves rows in the spool that may wait, so that they are delivered under their final ids.
    """
    wanted = sorted({dataset for name in sinks for dataset in context.config.sinks[name].datasets})
    spooled = [dataset for dataset in wanted if reader.waiting(context.home, dataset, skip_deferred=patient).segments]
    try:
        if spooled:
            flush_datasets(context, spooled, skip_deferred=patient)
    except Cancelled:
        raise
    except HypError as error:
        context.note(f"rows in the spool could not be committed and are not delivered now: {error.message}")
        return [error]
    return []


def _configured_streams(context: JobContext, opened: OpenHome, name: str) -> list[Standing]:
    return [each for each in standings(context.home, context.config, opened.store, [name]) if not each.removed]
