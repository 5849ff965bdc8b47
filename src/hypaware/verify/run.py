"""The engine job `verify`: run every check on every dataset that has a table.

Arguments: `deep` (read everything instead of a sample), `repair` (repair derived data before checking),
`accept_rollback`. Result: `{ok, checks: [{name, dataset, ok, detail}]}`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from hypaware.engine.jobs import JobContext
from hypaware.errors import LakeError
from hypaware.lake import metadata, secure
from hypaware.lake.jobs import recorded_through
from hypaware.lake.spark_lake import SparkLake, known_datasets
from hypaware.lake.spark_table import SparkTable
from hypaware.lake.turns import changing
from hypaware.opening import open_home
from hypaware.state.store import Store
from hypaware.verify import checks, repair
from hypaware.verify.checks import Audit, Check


def verify(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    spark = context.spark
    found: list[Check] = []
    opened = open_home(context.home)
    lake = SparkLake(context.home, spark, opened.identity, context.check_cancelled)
    try:
        for dataset in known_datasets(context.home):
            # Hold the commit lock, so that the table does not change between two checks.
            with changing(dataset.name, context.check_cancelled):
                try:
                    secure.refuse_damaged(context.home, dataset.name)
                except LakeError as error:
                    command = f" ({error.repair[0]})" if error.repair else ""
                    found.append(Check("table", dataset.name, False, f"{error.message}{command}"))
                    continue
                audit = Audit(context.home, opened.store, lake, SparkTable(spark, dataset), dataset, bool(args["deep"]))
                if args["accept_rollback"]:
                    _note(context, audit, repair.accept_rollback(audit))
                if args["repair"]:
                    _note(context, audit, repair.repair(audit))
                for index, check in enumerate(checks.ALL):
                    context.check_cancelled()
                    context.progress(f"checking {dataset.name}", index, len(checks.ALL))
                    found.append(_run_check(check, audit))
        found += _lost_tables(context, opened.store)
    finally:
        opened.store.close()
    return {"ok": all(check.ok for check in found), "checks": [asdict(check) for check in found]}


def _run_check(check: Callable[[Audit], Check], audit: Audit) -> Check:
    """Run a check. If a damaged file stops it, it has failed, and the other checks still run."""
    try:
        return check(audit)
    except (Py4JJavaError, PySparkException, OSError, ValueError) as error:
        message = str(error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else error)
        first = (message.splitlines() or [type(error).__name__])[0][:300]
        return Check(check.__name__.removeprefix("check_"), audit.dataset.name, False, f"could not run: {first}")


def _note(context: JobContext, audit: Audit, repairs: Iterable[str]) -> None:
    for description in repairs:
        context.note(f"{audit.dataset.name}: {description}")


def _lost_tables(context: JobContext, store: Store) -> list[Check]:
    """Return a failed check for each table with recorded rows that is not in the catalog."""
    present = {entry.name for entry in metadata.entries(context.home)}
    return [
        Check(
            "table",
            name,
            False,
            f"rows up to {last} were recorded, but the table is not in the catalog (hyp maintain {name} --rebuild)",
        )
        for name, last in recorded_through(store).items()
        if name not in present
    ]
