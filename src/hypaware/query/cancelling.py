"""Cancels what Spark starts for a query after the query was cancelled.

Spark's own cancelling of a job group, "and future jobs", forgets the shuffle stages that adaptive execution submits:
a query that is cancelled while it is being planned would run on to its end.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hypaware.engine.jobs import JobContext
from hypaware.errors import Cancelled

if TYPE_CHECKING:
    from pyspark import SparkContext

_LOOK_SECONDS = 0.25


@contextmanager
def held_to(context: JobContext, spark: SparkContext) -> Iterator[None]:
    """Within it, a cancelled job has no Spark job for long."""
    group = spark.getLocalProperty("spark.jobGroup.id")
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_LOOK_SECONDS):
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
