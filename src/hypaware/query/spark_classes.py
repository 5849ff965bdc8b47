"""The Spark classes that queries use in the JVM, looked up once: each part of a name costs a round trip."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkClasses:
    def __init__(self, session: SparkSession) -> None:
        sql = session._jvm.org.apache.spark.sql
        logical, expressions = sql.catalyst.plans.logical, sql.catalyst.expressions
        self.session = sql.classic.SparkSession
        self._dataset = sql.classic.Dataset
        self._arrow = sql.util.ArrowUtils
        self._global_limit, self._local_limit = logical.GlobalLimit, logical.LocalLimit
        self._literal, self._integer = expressions.Literal, sql.types.DataTypes.IntegerType
        self._list = expressions.Coalesce

    def dataset(self, java_session: Any, plan: Any) -> Any:
        """Analyze a parsed plan."""
        return self._dataset.ofRows(java_session, plan)

    def limit_of_each_partition(self, rows: int, plan: Any) -> Any:
        return self._local_limit(self._literal(rows, self._integer), plan)

    def limit(self, rows: int, plan: Any) -> Any:
        return self._global_limit(self._literal(rows, self._integer), self.limit_of_each_partition(rows, plan))

    def arrow_schema_message(self, schema: Any) -> bytes:
        message: bytes = self._arrow.toArrowSchema(schema, "UTC", False, False).serializeAsMessage()
        return message

    def as_one(self, expressions: Any) -> Any:
        """Wrap several expressions in one, which is never evaluated."""
        return self._list(expressions)
