"""The engine job `query`: refresh, check, read, render.

Arguments: `sql`; `format` (one of `formats.FORMATS`); `max_rows` (None for all); `refresh` (never, auto, always);
`width` and `color` of the terminal; `only` (a dataset: no other can be queried) and `without_sessions` (ids of sessions
whose rows the query does not see), for callers that must not read everything. The rendered bytes are streamed; the
result is `{rows, truncated, seconds}`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from hypaware import telemetry
from hypaware.engine.jobs import JobContext
from hypaware.errors import Cancelled, HypError, UsageError
from hypaware.lake import health
from hypaware.lake.flush import flush_datasets, list_flushable_datasets
from hypaware.model import datasets
from hypaware.query import errors, formats, guard, views

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext

    from hypaware.query.results import QueryResult

_POLL_SECONDS = 0.25
# Rebuilds take much longer than the start of a query, so two in a row during it are hardly possible.
_ATTEMPTS = 3
_TABLE_REPLACED = "INCOMPATIBLE_TABLE_CHANGE_AFTER_ANALYSIS"


def run_query(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    sql, format_ = str(args["sql"]), args.get("format", "jsonl")
    max_rows = args.get("max_rows")
    if format_ not in formats.FORMATS or (max_rows is not None and max_rows < 0):
        raise UsageError(f"invalid query arguments: format {format_!r}, max_rows {max_rows!r}")
    started = time.monotonic()
    with telemetry.span("query.execute_sql", component="query", format=format_) as span:
        spark = context.spark
        refresh_view(context, args.get("refresh", "auto"))
        session_views = views.get_views(spark, args.get("without_sessions") or ())
        known = (args["only"],) if args.get("only") else datasets.list_names()
        with errors.translate_errors(), cancel_with(context, spark.sparkContext), session_views.active():
            statement = guard.parse_statement(session_views.session, sql, known)
            health.check_tables(context.home, statement.datasets)
            result = _start_reading(session_views, statement, max_rows, known)
            limited = RowLimit(result.batches, max_rows)
            width, color = args.get("width"), bool(args.get("color"))
            with closing(result.batches):
                for chunk in formats.render(format_, result.schema, limited, width=width, color=color):
                    context.check_cancelled()
                    context.emit(chunk)
        seconds = time.monotonic() - started
        span.set(row_count=limited.rows, truncated=limited.truncated, column_count=len(result.schema))
    if limited.truncated:
        first_rows = "row is" if limited.rows == 1 else f"{limited.rows} rows are"
        context.note(f"only the first {first_rows} shown (use --max-rows 0 to see all)")
    elif format_ == "table":
        context.note(f"{limited.rows} {'row' if limited.rows == 1 else 'rows'} in {seconds:.2f} s")
    return {"rows": limited.rows, "truncated": limited.truncated, "seconds": round(seconds, 3)}


def _start_reading(
    session_views: views.Views, statement: guard.Statement, max_rows: int | None, known: Sequence[str]
) -> QueryResult:
    """Read the result up to its first batch. Start again if a rebuild has replaced a table since it was analyzed."""
    from pyspark.errors import AnalysisException

    from hypaware.query import results

    for attempts_left in reversed(range(_ATTEMPTS)):
        session_views.show(statement.relations)
        try:
            return results.read_result(session_views, statement, max_rows, known)
        except AnalysisException as error:
            replaced = (error.getCondition() or "").startswith(_TABLE_REPLACED)
            if not replaced or not attempts_left:
                raise
    raise AssertionError("unreachable")


class RowLimit:
    """The first `max_rows` rows of a result. Afterwards it knows their number and whether any were left out."""

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


def refresh_view(context: JobContext, mode: str) -> None:
    """Flush the spool before a query: `never`, `always`, or `auto` (if the last commit is too old).

    An empty spool costs only a directory listing.
    """
    if mode == "never" or not health.has_pending_rows(context.home):
        return
    age = health.seconds_since_flush(context.home)
    if mode == "auto" and age is not None and age < context.config.flush.interval:
        context.note(
            f"the result is {age:.0f} s old; newer rows are in the spool (use --refresh always to include them)"
        )
        return
    try:
        flush_datasets(context, list_flushable_datasets(context.home))
    except Cancelled:
        raise
    except HypError as error:
        # Another dataset may be damaged. The tables of this query are checked before it runs.
        context.note(f"some rows in the spool are not in the result, because they cannot be committed: {error.message}")


@contextmanager
def cancel_with(context: JobContext, spark: SparkContext) -> Iterator[None]:
    """Within this context, cancel every Spark job of the group once the engine job is cancelled.

    Spark's own cancellation of a job group misses the shuffle stages that adaptive execution submits later, so a query
    that is cancelled during planning would run to its end. Tasks that wait or sort end only if they are interrupted.
    """
    spark.setLocalProperty("spark.job.interruptOnCancel", "true")
    group = spark.getLocalProperty("spark.jobGroup.id")
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_POLL_SECONDS):
            try:
                context.check_cancelled()
            except Cancelled:
                spark._jsc.sc().cancelJobGroup(group)

    watcher = threading.Thread(target=watch, name=f"cancelling {group}", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
