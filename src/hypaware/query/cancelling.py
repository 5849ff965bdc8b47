"""Cancel Spark jobs that start after their query was cancelled.

Spark's own cancellation of a job group misses the shuffle stages that adaptive execution submits later, so a query that
is cancelled during planning would run to its end.
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

_POLL_SECONDS = 0.25


@contextmanager
def held_to(context: JobContext, spark: SparkContext) -> Iterator[None]:
    """Within this context, cancel every Spark job of the group once the engine job is cancelled."""
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
