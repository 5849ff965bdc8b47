"""Run the query job as the engine does, and keep its notes and its output."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypaware.config import Config
from hypaware.errors import Cancelled
from hypaware.home import Home
from hypaware.query.run import run_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class QueryRunner:
    """A `JobContext` around a Spark session. Each query runs in a job group of its own, as in the engine."""

    def __init__(self, spark: SparkSession, cancel_when: Callable[[QueryRunner], bool] = lambda runner: False) -> None:
        self.home = Home(Path("/nowhere"))
        self.config = Config()
        self.spark = spark
        self.notes: list[str] = []
        self.chunks: list[bytes] = []
        self._cancel_when = cancel_when

    def progress(self, message: str, done: float | None = None, total: float | None = None, **facts: object) -> None:
        """Ignore progress."""

    def emit(self, chunk: bytes) -> None:
        self.chunks.append(chunk)

    def note(self, message: str) -> None:
        self.notes.append(message)

    def check_cancelled(self) -> None:
        if self._cancel_when(self):
            raise Cancelled

    def run(self, sql: str, **args: Any) -> dict[str, Any]:
        self.notes, self.chunks = [], []
        self.spark.sparkContext.setJobGroup(secrets.token_hex(4), "query")
        return run_query(self, {"sql": sql, "refresh": "never", **args})

    def rows(self, sql: str, **args: Any) -> list[dict[str, Any]]:
        self.run(sql, format="json", **args)
        found: list[dict[str, Any]] = json.loads(self.output)
        return found

    def values(self, sql: str, **args: Any) -> list[Any]:
        """Return the values of a query with one column."""
        return [next(iter(row.values())) for row in self.rows(sql, **args)]

    @property
    def output(self) -> bytes:
        return b"".join(self.chunks)
