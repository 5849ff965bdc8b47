"""The job `purge`. args: `kind`, `values` (as in `Selector`), `allow_reimport`. Result: the report of the purge."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from hypaware import telemetry
from hypaware.engine.jobs import JobContext
from hypaware.lake.spark_lake import SparkLake
from hypaware.maintain.purge.history import SparkHistory
from hypaware.maintain.purge.purging import Purging
from hypaware.maintain.purge.run import run
from hypaware.maintain.purge.selection import Selector
from hypaware.opening import open_home


def purge(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    spark = context.spark
    opened = open_home(context.home)
    with closing(opened.store), telemetry.span("maintain.purge", component="maintain", operation="purge") as span:
        purge_context = Purging(
            context.home,
            context.config,
            opened.store,
            SparkLake(context.home, spark, opened.identity, context.check_cancelled),
            Selector.from_args(args),
            SparkHistory(spark),
            allow_reimport=bool(args.get("allow_reimport")),
            progress=lambda message, done, total: context.progress(message, done, total or None),
            note=context.note,
            check_cancelled=context.check_cancelled,
        )
        report = run(purge_context)
        span.set(row_count=report.rows)
    return report.as_json()
