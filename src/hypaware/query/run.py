"""The job `query`: refresh, check, read, render.

Arguments: `sql`; `format` (one of `formats.FORMATS`); `max_rows` (none: all); `refresh` (never, auto, always);
`width` and `color` of the terminal. The rendered bytes are streamed; the result is `{rows, truncated, seconds}`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from hypaware import telemetry
from hypaware.engine.jobs import JobContext
from hypaware.errors import UsageError
from hypaware.lake import standing
from hypaware.model import datasets
from hypaware.query import cancelling, formats, guard, spark_errors, views

if TYPE_CHECKING:
    import pyarrow as pa


def run_query(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    from hypaware.query import refresh, results

    sql, format_ = str(args["sql"]), args.get("format", "jsonl")
    max_rows = args.get("max_rows")
    if format_ not in formats.FORMATS or (max_rows is not None and max_rows < 0):
        raise UsageError(f"a query cannot be answered as {format_!r} with max_rows {max_rows!r}")
    began = time.monotonic()
    with telemetry.span("query.execute_sql", component="query", format=format_) as span:
        spark = context.spark
        refresh.before_query(context, args.get("refresh", "auto"))
        shown, known = views.of(spark), datasets.names()
        with spark_errors.translated(), cancelling.held_to(context, spark.sparkContext), shown.active():
            statement = guard.parse(shown.session, sql, known)
            standing.check_tables(context.home, statement.datasets)
            shown.show(statement.relations)
            check = partial(guard.check_analyzed, java=shown.java, known=known)
            result = results.read(shown, statement, max_rows, check)
            cut = Cut(result.batches, max_rows)
            width, color = args.get("width"), bool(args.get("color"))
            with closing(result.batches):
                for chunk in formats.render(format_, result.schema, cut, width=width, color=color):
                    context.check_cancelled()
                    context.emit(chunk)
        seconds = time.monotonic() - began
        span.set(row_count=cut.rows, truncated=cut.truncated, column_count=len(result.schema))
    if cut.truncated:
        shown_rows = "row is" if cut.rows == 1 else f"{cut.rows} rows are"
        context.note(f"only the first {shown_rows} shown; there are more (--max-rows 0 shows all)")
    elif format_ == "table":
        context.note(f"{cut.rows} {'row' if cut.rows == 1 else 'rows'} in {seconds:.2f} s")
    return {"rows": cut.rows, "truncated": cut.truncated, "seconds": round(seconds, 3)}


class Cut:
    """The first rows of a result; knows afterwards how many there were, and whether any were left out."""

    def __init__(self, batches: Iterable[pa.RecordBatch], max_rows: int | None) -> None:
        self._batches = batches
        self._max_rows = max_rows
        self.rows = 0
        self.truncated = False

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            if self._max_rows is not None and self.rows + batch.num_rows > self._max_rows:
                batch = batch.slice(0, self._max_rows - self.rows)
                self.truncated = True
            self.rows += batch.num_rows
            yield batch
            if self.truncated:
                return
