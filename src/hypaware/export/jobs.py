"""The jobs `export` and `replay` of an engine."""

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

_TELL_SECONDS = 0.5


def export(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """args: `sinks` (all if None), `max_wait` (seconds), `budget` (intents per stream, None for all), `patient`."""
    chosen = configured.chosen(context.config, args.get("sinks") or ())
    opened = open_home(context.home)
    if opened.rebuilt:
        context.note(opened.rebuilt)
    try:
        # What goes out under this incarnation must be asked for under it, should state and side file be lost.
        remember(context, opened.identity)
        troubles = _flush_first(context, chosen, patient=bool(args.get("patient")))
        thread = SparkThread(context)
        terms = Terms(float(args.get("max_wait", 60.0)), args.get("budget"), bool(args.get("patient")))
        progress = _Progress(context, opened, chosen)
        driver = Driver(opened, context.config, LakeRows(context.home), terms, thread.on_spark, progress.delivered)
        reports = thread.run(driver.deliver(chosen))
    finally:
        opened.store.close()
    if troubles:
        raise troubles[0]
    return {"sinks": [report.as_json() for report in reports]}


def replay(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """args: `id` of a dead letter. Result: `{id, status: delivered | refused | failed, reason?}`."""
    opened = open_home(context.home)
    try:
        thread = SparkThread(context)
        driver = Driver(opened, context.config, LakeRows(context.home), Terms(), thread.on_spark)
        return thread.run(replaying.replay(driver, args["id"]))
    finally:
        opened.store.close()


class _Progress:
    """Told from the loop's thread; the caller sees all sinks together, at most twice a second."""

    def __init__(self, context: JobContext, opened: OpenHome, chosen: list[str]) -> None:
        self._context = context
        self._told = time.monotonic()
        self._rows = self._bytes = 0
        lag = {name: sum(map(self._lag, _configured_streams(context, opened, name))) for name in chosen}
        self._total = sum(lag.values())
        self._message = f"delivering to {', '.join(name for name in chosen if lag[name]) or ', '.join(chosen)}"
        self.tell()

    def delivered(self, _sink: str, rows: int, sent: int) -> None:
        self._rows += rows
        self._bytes += sent
        if time.monotonic() - self._told >= _TELL_SECONDS:
            self.tell()

    def tell(self) -> None:
        self._told = time.monotonic()
        total = max(self._total, self._rows)
        self._context.progress(self._message, self._rows, total, unit="rows", rows=self._rows, bytes=self._bytes)

    def _lag(self, standing: Standing) -> int:
        key, after = standing.key, standing.watermark or 0
        try:
            return counting.rows_between(self._context.home, key.dataset, key.source, after, standing.high_water)
        except (OSError, ValueError):
            return 0  # a damaged lake: its own stream will say so


def _flush_first(context: JobContext, chosen: list[str], *, patient: bool) -> list[HypError]:
    """What waits in the spool is on its way too. Its trouble does not keep back what the lake already has.

    A round that nobody asked for leaves rows that may wait: they go out under their own ids then.
    """
    wanted = sorted({dataset for name in chosen for dataset in context.config.sinks[name].datasets})
    waiting = [dataset for dataset in wanted if reader.waiting(context.home, dataset, patient=patient).segments]
    try:
        if waiting:
            flush_datasets(context, waiting, patient=patient)
    except Cancelled:
        raise
    except HypError as trouble:
        context.note(f"what waits in the spool could not be committed, and is not delivered now: {trouble.message}")
        return [trouble]
    return []


def _configured_streams(context: JobContext, opened: OpenHome, name: str) -> list[Standing]:
    return [each for each in standings(context.home, context.config, opened.store, [name]) if not each.removed]
