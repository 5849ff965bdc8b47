"""The engine's jobs on the lake: recovery when an engine acquires it, flush, and read."""

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
    """Repair the lake after its lock was acquired: damage by a power cut, an outdated state, interrupted flushes."""
    with _opened(context) as opened:
        damaged = _step_back(context, opened.store)
        secure.secure_all(context.home, skip=damaged)
        floor = rebuild.read_facts(context.home).floor
        with opened.store.reading() as connection:
            is_behind = flushes.next_seq(connection) <= floor
            interrupted = flushes.unfinished(connection)
        if is_behind:
            opened = catch_up(context.home, opened.store, "the state was older than the lake and was updated from it")
            context.note(str(opened.rebuilt))
        lake = SparkLake(context.home, context.spark, opened.identity, context.check_cancelled)
        for name in _registered(context, sorted({flush.dataset for flush in interrupted} - damaged)):
            settle_unfinished(context.home, opened.store, lake.table(datasets.get(name)), name)
        # No other job runs yet, and the job that acquired the lake may hold the lock already.
        _remember(context, opened.identity, lambda _: nullcontext(), skip=damaged)


def _step_back(context: JobContext, store: Store) -> set[str]:
    """Roll back damaged commits. Return the tables that this cannot repair; nothing may write to them."""
    damaged = set()
    for found in secure.step_back_where_damaged(context.home, recorded_through(store)):
        if isinstance(found, secure.Damaged):
            damaged.add(found.table)
            context.note(found.error.message)
        else:
            context.note(
                f"{found.table}: the newest commit was damaged by a crash ({found.reason}) and was rolled back"
            )
    return damaged


def remember(context: JobContext, identity: Identity) -> None:
    """Store the incarnation in tables that lack it. Spark is used only if there is one."""
    _remember(context, identity, lambda name: changing(name, context.check_cancelled))


def _remember(
    context: JobContext,
    identity: Identity,
    lock: Callable[[str], AbstractContextManager[None]],
    skip: Collection[str] = (),
) -> None:
    for name, known in rebuild.read_facts(context.home).tables.items():
        if name in skip:
            continue
        if known.properties.get(INCARNATION) == identity.incarnation or name not in datasets.names():
            continue
        with lock(name):
            secure.secure(context.home, name)
            if SparkTable(context.spark, datasets.get(name)).store_identity(identity):
                secure.secure(context.home, name)


def recorded_through(store: Store) -> dict[str, int]:
    with store.reading() as connection:
        return {name: max(by_source.values()) for name, by_source in flushes.high_water(connection).items()}


def flush(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Run the job `flush`.

    args: `dataset` (all that have a spool if missing), `patient` (skip deferred rows). Result: the flush document of
    INTERFACE.
    """
    wanted = [args["dataset"]] if args.get("dataset") else segments.datasets_with_spool(context.home)
    reports = flush_datasets(context, wanted, skip_deferred=bool(args.get("patient")))
    return {"datasets": [_as_json(report) for report in reports]}


def flush_datasets(context: JobContext, names: list[str], *, skip_deferred: bool = False) -> list[Report]:
    """Flush each dataset. An error of one does not stop the others; the first error is raised at the end."""
    limits = Limits(context.config.flush.max_rows, context.config.flush.max_bytes)
    reports: list[Report] = []
    errors: list[HypError] = []
    spark = context.spark
    with _opened(context) as opened:
        lake = SparkLake(context.home, spark, opened.identity, context.check_cancelled)
        flusher = Flusher(context.home, opened.store, lake, limits, _progress_to(context), context.check_cancelled)
        for name in _registered(context, names):
            try:
                reports.append(_flush_table(context, flusher, lake, datasets.get(name), skip_deferred))
            except Cancelled:
                raise
            except HypError as error:
                errors.append(error)
    if errors:
        raise errors[0]
    return reports


def _flush_table(
    context: JobContext, flusher: Flusher, lake: SparkLake, dataset: Dataset, skip_deferred: bool
) -> Report:
    with changing(dataset.name, context.check_cancelled):
        report = flusher.flush(dataset, skip_deferred=skip_deferred)
        if report.rows_written:
            trim(context, lake.table(dataset), dataset.name)
    for active in report.still_active:
        context.note(f"{dataset.name}: a running process has not sealed {active}; its rows remain in the spool")
    return report


def trim(context: JobContext, table: SparkTable, name: str) -> None:
    """Remove old snapshots. A failure is only reported, because the flush is already committed."""
    try:
        if table.trim():
            secure.secure(context.home, name)
    except Exception as error:
        context.note(f"{name}: old snapshots could not be removed ({type(error).__name__}); the next flush tries again")


def _registered(context: JobContext, names: list[str]) -> list[str]:
    """Return the datasets that are installed. Rows of the others stay in the spool until their plugin returns."""
    known = datasets.names()
    for name in names:
        if name not in known:
            context.note(f"{name}: this dataset is not installed; its rows remain in {context.home.spool / name}")
    return [name for name in names if name in known]


def read(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Run the job `read`: emit one page of a dataset's rows. args: the fields of `read.Range`."""
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
