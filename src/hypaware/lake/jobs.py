"""The lake's jobs, as an engine runs them: flush, and what an engine does first with a lake that it has taken over."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from typing import Any

from hypaware.engine.jobs import JobContext
from hypaware.errors import Cancelled, HypError
from hypaware.lake import read as reading
from hypaware.lake import rebuild, secure
from hypaware.lake.flush import Flusher, Limits, Report
from hypaware.lake.metadata import INCARNATION
from hypaware.lake.recover import settle_unfinished
from hypaware.lake.spark_lake import SparkLake
from hypaware.lake.spark_table import SparkTable
from hypaware.lake.turns import changing
from hypaware.model import datasets
from hypaware.model.datasets import Dataset
from hypaware.opening import OpenHome, catch_up, open_home
from hypaware.spool import segments
from hypaware.state import flushes
from hypaware.state.identity import Identity
from hypaware.state.store import Store


def recover(context: JobContext) -> None:
    """With the lock just taken: damage of a power cut, a state that lags, flushes that somebody left unfinished."""
    with _opened(context) as opened:
        damaged = _step_back(context, opened.store)
        secure.secure_all(context.home, but=damaged)
        floor = rebuild.read_facts(context.home).floor
        with opened.store.reading() as connection:
            lags = flushes.next_seq(connection) <= floor
            left = flushes.unfinished(connection)
        if lags:
            opened = catch_up(context.home, opened.store, "the state was older than the lake and was raised to it")
            context.note(str(opened.rebuilt))
        lake = SparkLake(context.home, context.spark, opened.identity, context.check_cancelled)
        for name in _registered(context, sorted({flush.dataset for flush in left} - damaged)):
            settle_unfinished(context.home, opened.store, lake.table(datasets.get(name)), name)
        # Nobody else is at work yet, and the job that opened the lake may have the turn already.
        _remember(context, opened.identity, lambda _: nullcontext(), but=damaged)


def _step_back(context: JobContext, store: Store) -> set[str]:
    """The tables that are damaged beyond that: nothing writes to them, and the others go on."""
    damaged = set()
    for found in secure.step_back_where_damaged(context.home, recorded_through(store)):
        if isinstance(found, secure.Damaged):
            damaged.add(found.table)
            context.note(found.error.message)
        else:
            context.note(f"{found.table}: the newest commit did not survive a crash ({found.reason}); stepped back")
    return damaged


def remember(context: JobContext, identity: Identity) -> None:
    """Only a table that does not know this incarnation yet is loaded for it; else Spark is not needed."""
    _remember(context, identity, lambda name: changing(name, context.check_cancelled))


def _remember(
    context: JobContext,
    identity: Identity,
    turn: Callable[[str], AbstractContextManager[None]],
    but: Collection[str] = (),
) -> None:
    for name, known in rebuild.read_facts(context.home).tables.items():
        if name in but:
            continue
        if known.properties.get(INCARNATION) == identity.incarnation or name not in datasets.names():
            continue
        with turn(name):
            secure.secure(context.home, name)
            if SparkTable(context.spark, datasets.get(name)).remember(identity):
                secure.secure(context.home, name)


def recorded_through(store: Store) -> dict[str, int]:
    with store.reading() as connection:
        return {name: max(by_source.values()) for name, by_source in flushes.high_water(connection).items()}


def flush(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """args: `dataset`, or all that have a spool; `patient` leaves what may wait. Result: INTERFACE's flush document."""
    wanted = [args["dataset"]] if args.get("dataset") else segments.datasets_with_spool(context.home)
    reports = flush_datasets(context, wanted, patient=bool(args.get("patient")))
    return {"datasets": [_as_json(report) for report in reports]}


def flush_datasets(context: JobContext, names: list[str], *, patient: bool = False) -> list[Report]:
    """One dataset's trouble does not hold the others up; the first is raised when all had their turn."""
    limits = Limits(context.config.flush.max_rows, context.config.flush.max_bytes)
    reports: list[Report] = []
    troubles: list[HypError] = []
    spark = context.spark
    with _opened(context) as opened:
        lake = SparkLake(context.home, spark, opened.identity, context.check_cancelled)
        flusher = Flusher(context.home, opened.store, lake, limits, _progress_to(context), context.check_cancelled)
        for name in _registered(context, names):
            try:
                reports.append(_flush_table(context, flusher, lake, datasets.get(name), patient))
            except Cancelled:
                raise
            except HypError as trouble:
                troubles.append(trouble)
    if troubles:
        raise troubles[0]
    return reports


def _flush_table(context: JobContext, flusher: Flusher, lake: SparkLake, dataset: Dataset, patient: bool) -> Report:
    with changing(dataset.name, context.check_cancelled):
        report = flusher.flush(dataset, patient=patient)
        if report.rows_written:
            trim(context, lake.table(dataset), dataset.name)
    for held in report.still_active:
        context.note(f"{dataset.name}: {held} is held by a process that does not seal it; its rows still wait")
    return report


def trim(context: JobContext, table: SparkTable, name: str) -> None:
    """Housekeeping: its failure takes nothing away from a flush that landed."""
    try:
        if table.trim():
            secure.secure(context.home, name)
    except Exception as error:
        context.note(f"{name}: old snapshots could not be removed ({type(error).__name__}); the next flush tries again")


def _registered(context: JobContext, names: list[str]) -> list[str]:
    """Rows of a dataset whose plugin is gone wait for it; they must not stop the others."""
    known = datasets.names()
    for name in names:
        if name not in known:
            context.note(f"{name}: no such dataset is installed, its rows wait in {context.home.spool / name}")
    return [name for name in names if name in known]


def read(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """One page of a dataset's rows; args as `read.Range`."""
    return reading.page(context, reading.Range(**args))


@contextmanager
def _opened(context: JobContext) -> Iterator[OpenHome]:
    opened = open_home(context.home)
    if opened.rebuilt:
        context.note(opened.rebuilt)
    try:
        yield opened
    finally:
        opened.store.close()


def _progress_to(context: JobContext) -> Any:
    def progress(message: str, done: int, total: int) -> None:
        context.progress(message, done, total, unit="rows")

    return progress


def _as_json(report: Report) -> dict[str, Any]:
    body = asdict(report)
    body.pop("still_active")
    return body
