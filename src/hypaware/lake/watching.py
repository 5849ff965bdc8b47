"""Progress of a build: a background thread reports how much the finished tasks amount to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from hypaware.lake.build import BuildFailure, BuildTask, Built, Task, run_or_say_why

if TYPE_CHECKING:
    from pyspark import SparkContext

_EVERY_SECONDS = 0.25

Watcher = Callable[[int, int, int], None]
"""Receives (bytes, inputs, rows) of the finished tasks of the current run."""


@contextmanager
def watched(spark: SparkContext, watcher: Watcher) -> Iterator[Callable[[Task], Built | BuildFailure]]:
    """Yield a function that runs a task in an executor and counts its results. Call the watcher periodically."""
    counts = [spark.accumulator(0) for _ in range(3)]
    stopped = threading.Event()

    def report() -> None:
        while not stopped.wait(_EVERY_SECONDS):
            try:
                watcher(*(count.value for count in counts))
            except Exception:
                # The client has disconnected; the job itself detects and reports that.
                return

    reporter = threading.Thread(target=report, name="watching", daemon=True)
    reporter.start()
    try:
        yield partial(_run_counted, counts)
    finally:
        stopped.set()
        reporter.join()


def _run_counted(counts: list[Any], task: Task) -> Built | BuildFailure:
    result = run_or_say_why(task)
    if isinstance(task, BuildTask) and isinstance(result, Built):
        for count, done in zip(counts, (task.bytes, len(task.pieces), result.rows), strict=True):
            count.add(done)
    return result
