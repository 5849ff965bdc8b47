"""The engine job `verify`: run every check on every dataset that has a table.

Arguments: `deep` (read everything instead of a sample), `repair` (repair derived data before checking: the key index, a
lagging high water, files of discarded flushes; never a row), `accept_rollback`. Result:
`{ok, checks: [{name, dataset, ok, detail}]}`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from hypaware.engine.jobs import JobContext
from hypaware.errors import LakeError
from hypaware.iceberg import fsync, metadata
from hypaware.lake import dedupe, key_index
from hypaware.lake.commit import finish_interrupted_flushes
from hypaware.lake.health import read_recorded_floors
from hypaware.lake.locks import commit_lock
from hypaware.lake.spark_table import SparkLake, SparkTable, list_stored_datasets
from hypaware.state import flushes, mirror, recovery, streams
from hypaware.state.home_opener import open_home
from hypaware.state.store import StateStore
from hypaware.verify import checks
from hypaware.verify.checks import DatasetAudit, VerifyCheck


def run_verify(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    spark = context.spark
    found: list[VerifyCheck] = []
    opened = open_home(context.home)
    lake = SparkLake(context.home, spark, opened.identity, context.check_cancelled)
    try:
        for dataset in list_stored_datasets(context.home):
            # Hold the commit lock, so that the table does not change between two checks.
            with commit_lock(dataset.name, context.check_cancelled):
                try:
                    fsync.require_intact(context.home, dataset.name)
                except LakeError as error:
                    command = f" ({error.repair[0]})" if error.repair else ""
                    found.append(VerifyCheck("table", dataset.name, False, f"{error.message}{command}"))
                    continue
                audit = DatasetAudit(
                    context.home, opened.store, lake, SparkTable(spark, dataset), dataset, bool(args["deep"])
                )
                if args["accept_rollback"]:
                    _note(context, audit, accept_rollback(audit))
                if args["repair"]:
                    _note(context, audit, repair_dataset(audit))
                for index, check in enumerate(checks.ALL_CHECKS):
                    context.check_cancelled()
                    context.progress(f"checking {dataset.name}", index, len(checks.ALL_CHECKS))
                    found.append(_run_check(check, audit))
        found += _lost_tables(context, opened.store)
    finally:
        opened.store.close()
    return {"ok": all(check.ok for check in found), "checks": [asdict(check) for check in found]}


def _run_check(check: Callable[[DatasetAudit], VerifyCheck], audit: DatasetAudit) -> VerifyCheck:
    """Run a check. If a damaged file stops it, it has failed, and the other checks still run."""
    try:
        return check(audit)
    except (Py4JJavaError, PySparkException, OSError, ValueError) as error:
        message = str(error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else error)
        first = (message.splitlines() or [type(error).__name__])[0][:300]
        return VerifyCheck(check.__name__.removeprefix("check_"), audit.dataset.name, False, f"could not run: {first}")


def _note(context: JobContext, audit: DatasetAudit, repairs: Iterable[str]) -> None:
    for description in repairs:
        context.note(f"{audit.dataset.name}: {description}")


def _lost_tables(context: JobContext, store: StateStore) -> list[VerifyCheck]:
    """Return a failed check for each table with recorded rows that is not in the catalog."""
    present = {entry.name for entry in metadata.list_tables(context.home)}
    return [
        VerifyCheck(
            "table",
            name,
            False,
            f"rows up to {last} were recorded, but the table is not in the catalog (hyp maintain {name} --rebuild)",
        )
        for name, last in read_recorded_floors(store).items()
        if name not in present
    ]


def repair_dataset(audit: DatasetAudit) -> Iterator[str]:
    """Repair one dataset, and yield a description of each repair."""
    finish_interrupted_flushes(audit.home, audit.store, audit.table, audit.dataset.name)
    if not checks.check_key_index(audit).ok:
        key_index.remove_index(audit.home.keys)
        yield "rebuilt the key index"
    dedupe.open_index(audit.home, audit.lake, audit.table, audit.dataset).close()
    if not (checks.check_high_water(audit).ok and checks.check_allocation(audit).ok):
        with audit.store.transaction() as connection:
            recovery.raise_state_to(
                connection, recovery.summarize_lake(audit.home), mirror.read_mirror(audit.home.mirror)
            )
        mirror.write_mirror(audit.home.mirror, audit.store)
        yield "advanced the state to the lake"
    leftover = checks.find_removable(audit)
    for path in leftover:
        path.unlink(missing_ok=True)
    if leftover:
        yield f"deleted {len(leftover)} files of discarded flushes"


def accept_rollback(audit: DatasetAudit) -> Iterator[str]:
    """Lower the state to the lake, giving up recorded rows that the lake no longer has."""
    if gone := checks.rolled_back_sources(audit):
        with audit.store.transaction() as connection:
            flushes.lower_high_water(connection, audit.dataset.name, audit.table.floor)
            streams.lower_watermarks(connection, audit.dataset.name, audit.table.floor)
        mirror.write_mirror(audit.home.mirror, audit.store)
        yield f"gave up recorded rows of {', '.join(gone)} above sequence {audit.table.floor}"
