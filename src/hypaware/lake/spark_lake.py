"""The lake on Spark: opens tables and runs tasks in parallel."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession

from hypaware.home import Home
from hypaware.lake import metadata, secure, tables
from hypaware.lake.build import BuildFailure, BuildTask, Built, Task, run_or_say_why, workers_run
from hypaware.lake.spark_table import SparkTable, jvm_lost
from hypaware.lake.watching import Watcher, watched
from hypaware.model import datasets
from hypaware.model.datasets import Dataset
from hypaware.state.identity import Identity


class SparkLake:
    def __init__(
        self,
        home: Home,
        spark: SparkSession,
        identity: Identity,
        check_cancelled: Callable[[], None],
        watch: Watcher | None = None,
    ) -> None:
        self._home = home
        self.spark = spark
        self.identity = identity
        self._check_cancelled = check_cancelled
        self._watch = watch

    def table(self, dataset: Dataset) -> SparkTable:
        name = dataset.name
        if not tables.exists(self.spark, name):
            tables.create(self.spark, dataset, self.identity)
            secure.secure(self._home, name)
        table = SparkTable(self.spark, dataset)
        if tables.evolve(table.iceberg, self.spark._jvm, dataset, table.metadata.fields):
            secure.secure(self._home, name)
            table = SparkTable(self.spark, dataset)
        return table

    def run(self, tasks: Sequence[Task]) -> list[Built | BuildFailure]:
        if not tasks:
            return []
        spark = self.spark.sparkContext
        try:
            if self._watch is not None and isinstance(tasks[0], BuildTask):
                with watched(spark, self._watch) as run:
                    return list(spark.parallelize(tasks, len(tasks)).map(run).collect())
            return list(spark.parallelize(tasks, len(tasks)).map(run_or_say_why).collect())
        except (Py4JJavaError, CapturedException) as error:
            self._check_cancelled()
            # A worker died and the guilty rows are unknown, so all tasks fail. If no worker can start at all, the
            # environment is to blame.
            reason = f"a Spark task failed: {_first_line(error)}"
            return [BuildFailure(reason, is_environmental=not self._workers_run())] * len(tasks)
        except (Py4JError, OSError) as error:
            raise jvm_lost(error) from error

    def warm_up(self) -> None:
        """Start the Python workers in the background. If they fail, the first task reports it."""
        threading.Thread(target=self._workers_run, name="warm-up", daemon=True).start()

    def _workers_run(self) -> bool:
        try:
            spark = self.spark.sparkContext
            return all(spark.parallelize([None] * 2, 2).map(workers_run).collect())
        except Exception:
            return False


def _first_line(error: Exception) -> str:
    message = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else str(error)
    return (str(message).splitlines() or [type(error).__name__])[0]


def known_datasets(home: Home) -> list[Dataset]:
    """Return the registered datasets that have a table."""
    present = {entry.name for entry in metadata.entries(home)}
    return [dataset for dataset in datasets.all() if dataset.name in present]
