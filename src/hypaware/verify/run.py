"""The job `verify`: every check over every dataset that has a table.

args: `deep` (read everything instead of a sample), `repair` (mend what is derived, then look again).
Result: `{ok, checks: [{name, dataset, ok, detail}]}`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hypaware.engine.jobs import JobContext
from hypaware.lake.jobs import changing
from hypaware.lake.spark_lake import SparkTable, known_datasets
from hypaware.opening import open_home
from hypaware.verify import checks, repair
from hypaware.verify.checks import Audit, Check


def verify(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    spark = context.spark
    found: list[Check] = []
    opened = open_home(context.home)
    try:
        for dataset in known_datasets(context.home):
            # Nobody commits between two looks at the same table.
            with changing(dataset.name):
                audit = Audit(
                    context.home, opened.store, spark, SparkTable(spark, dataset), dataset, bool(args["deep"])
                )
                if args["repair"]:
                    for mended in repair.repair(audit):
                        context.note(f"{dataset.name}: {mended}")
                for place, check in enumerate(checks.ALL):
                    context.check_cancelled()
                    context.progress(f"checking {dataset.name}", place, len(checks.ALL))
                    found.append(check(audit))
    finally:
        opened.store.close()
    return {"ok": all(check.ok for check in found), "checks": [asdict(check) for check in found]}
