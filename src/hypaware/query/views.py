"""The views that queries see: one per dataset, with its public columns in their declared order.

The views live in a separate Spark session with its own settings, without other views or functions. A dataset is visible
under its plain name and, once a query uses it, under the namespace of the catalog (`hypaware.ai_gateway_messages`);
Spark calls such a view global, and the engine's session defines the namespace. Spark resolves a view again for each
query, so it always shows the newest commit. Views without certain sessions live in a session of their own, for one
query, under their plain names only: a namespace would be shared. A dataset without a table is an empty view, and a
column that the table lacks is null. Such an incomplete view is checked before each query; a complete one never again,
because tables only gain columns.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from hypaware.errors import QueryRefused
from hypaware.lake.schema import SQL_TYPES, full_table_name
from hypaware.model import datasets
from hypaware.model.datasets import Dataset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Small, so that rows of any length fit the memory of the JVM.
ROWS_FROM_JVM = 64

SESSION_COLUMN = "session_id"
_SETTINGS = {
    # Otherwise `${…}` in a query would be replaced by settings and environment variables.
    "spark.sql.variable.substitute": "false",
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_FROM_JVM),
}


class Relation(NamedTuple):
    """A dataset as a query names it."""

    dataset: str
    qualified: bool = False
    """Whether the name includes the namespace."""


class Views:
    def __init__(self, spark: SparkSession, without_sessions: Collection[str] = ()) -> None:
        from pyspark.logger import PySparkLogger

        # PySpark would print every error of a query, with its stack, to stderr.
        for logger in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
            PySparkLogger.getLogger(logger).disabled = True
        self.session = spark.newSession()
        for name, value in _SETTINGS.items():
            self.session.conf.set(name, value)
        self.java = SparkClasses(self.session)
        self._without_sessions = sorted(without_sessions)
        self._complete: set[Relation] = set()
        self._lock = threading.Lock()

    def show(self, relations: Iterable[Relation]) -> None:
        """Create or update the views of these datasets to match their tables."""
        with self._lock:
            for relation in set(relations) - self._complete:
                dataset = datasets.get(relation.dataset)
                stored = self._stored_columns(dataset)
                if self._without_sessions:
                    self._show_other_sessions(relation, dataset, stored)
                    continue
                kind = "GLOBAL TEMPORARY" if relation.qualified else "TEMPORARY"
                self.session.sql(f"CREATE OR REPLACE {kind} VIEW `{dataset.name}` AS {view_sql(dataset, stored)}")
                if all(column.name in stored for column in dataset.columns):
                    self._complete.add(relation)

    def _show_other_sessions(self, relation: Relation, dataset: Dataset, stored: frozenset[str]) -> None:
        from pyspark.sql import functions as f

        if relation.qualified or all(column.name != SESSION_COLUMN for column in dataset.columns):
            raise QueryRefused(
                f"{dataset.name} cannot be queried while sessions are withheld: name a dataset with sessions, without "
                "its namespace"
            )
        rows = self.session.sql(view_sql(dataset, stored))
        # A row without a session id could belong to a withheld session; it does not match either.
        rows.where(~f.col(SESSION_COLUMN).isin(self._without_sessions)).createOrReplaceTempView(dataset.name)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make this the active session of the thread: Spark's parser takes its settings from there."""
        sessions = self.java.session
        before = sessions.getActiveSession()
        sessions.setActiveSession(self.session._jsparkSession)
        try:
            yield
        finally:
            if before.isDefined():
                sessions.setActiveSession(before.get())
            else:
                sessions.clearActiveSession()

    def _stored_columns(self, dataset: Dataset) -> frozenset[str]:
        from pyspark.errors import AnalysisException

        try:
            return frozenset(self.session.table(full_table_name(dataset.name)).columns)
        except AnalysisException as error:
            if error.getCondition() not in ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND"):
                raise
            return frozenset()


def view_sql(dataset: Dataset, stored: frozenset[str]) -> str:
    columns = ", ".join(
        f"`{column.name}`" if column.name in stored else f"CAST(NULL AS {SQL_TYPES[column.type]}) AS `{column.name}`"
        for column in dataset.columns
    )
    return f"SELECT {columns} FROM {full_table_name(dataset.name)}" if stored else f"SELECT {columns} WHERE false"


class SparkClasses:
    """The Spark classes that queries use in the JVM, looked up once: each part of a name costs a round trip."""

    def __init__(self, session: SparkSession) -> None:
        sql = session._jvm.org.apache.spark.sql
        logical, expressions = sql.catalyst.plans.logical, sql.catalyst.expressions
        self.session, self.dataset = sql.classic.SparkSession, sql.classic.Dataset
        self.arrow = sql.util.ArrowUtils
        self.coalesce = expressions.Coalesce
        self._global_limit, self._local_limit = logical.GlobalLimit, logical.LocalLimit
        self._literal, self._integer = expressions.Literal, sql.types.DataTypes.IntegerType

    def limit_of_each_partition(self, rows: int, plan: Any) -> Any:
        return self._local_limit(self._literal(rows, self._integer), plan)

    def limit(self, rows: int, plan: Any) -> Any:
        return self._global_limit(self._literal(rows, self._integer), self.limit_of_each_partition(rows, plan))


_views_by_session: WeakKeyDictionary[SparkSession, Views] = WeakKeyDictionary()
_views_lock = threading.Lock()


def get_views(spark: SparkSession, without_sessions: Collection[str] = ()) -> Views:
    """Return the views of this engine session, created at its first query; new ones if sessions are left out."""
    if without_sessions:
        return Views(spark, without_sessions)
    with _views_lock:
        if spark not in _views_by_session:
            _views_by_session[spark] = Views(spark)
        return _views_by_session[spark]
