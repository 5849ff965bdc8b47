"""The job `verify`: every check over every dataset that has a table.

args: `deep` (read everything instead of a sample), `repair` (mend what is derived, then look), `accept_rollback`.
Result: `{ok, checks: [{name, dataset, ok, detail}]}`.
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
            # Nobody commits between two looks at the same table.
            with changing(dataset.name, context.check_cancelled):
                try:
                    secure.refuse_damaged(context.home, dataset.name)
                except LakeError as error:
                    repair_ = f" ({error.repair[0]})" if error.repair else ""
                    found.append(Check("table", dataset.name, False, f"{error.message}{repair_}"))
                    continue
                audit = Audit(context.home, opened.store, lake, SparkTable(spark, dataset), dataset, bool(args["deep"]))
                if args["accept_rollback"]:
                    _tell(context, audit, repair.accept_rollback(audit))
                if args["repair"]:
                    _tell(context, audit, repair.repair(audit))
                for place, check in enumerate(checks.ALL):
                    context.check_cancelled()
                    context.progress(f"checking {dataset.name}", place, len(checks.ALL))
                    found.append(_made(check, audit))
        found += _lost_tables(context, opened.store)
    finally:
        opened.store.close()
    return {"ok": all(check.ok for check in found), "checks": [asdict(check) for check in found]}


def _made(check: Callable[[Audit], Check], audit: Audit) -> Check:
    """A check that a damaged file stops has failed, and the others have their turn."""
    try:
        return check(audit)
    except (Py4JJavaError, PySparkException, OSError, ValueError) as error:
        told = str(error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else error)
        first = (told.splitlines() or [type(error).__name__])[0][:300]
        return Check(check.__name__, audit.dataset.name, False, f"could not be made: {first}")


def _tell(context: JobContext, audit: Audit, mended: Iterable[str]) -> None:
    for told in mended:
        context.note(f"{audit.dataset.name}: {told}")


def _lost_tables(context: JobContext, store: Store) -> list[Check]:
    """Tables whose rows were recorded and that the catalog does not know."""
    present = {entry.name for entry in metadata.entries(context.home)}
    return [
        Check(
            "table",
            name,
            False,
            f"rows up to {last} were recorded, the catalog does not know the table (hyp maintain {name} --rebuild)",
        )
        for name, last in recorded_through(store).items()
        if name not in present
    ]
