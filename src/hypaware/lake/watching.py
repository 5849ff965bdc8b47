"""Watching the tasks of a build while they run: how much is done, told every so often by a thread of its own."""

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
"""(bytes, pieces, rows) that the finished tasks of the present run amount to."""


@contextmanager
def watched(spark: SparkContext, watcher: Watcher) -> Iterator[Callable[[Task], Built | BuildFailure]]:
    """A function for the executors that runs a task and counts what it did; meanwhile the watcher is told."""
    counts = [spark.accumulator(0) for _ in range(3)]
    over = threading.Event()

    def tell() -> None:
        while not over.wait(_EVERY_SECONDS):
            try:
                watcher(*(count.value for count in counts))
            except Exception:
                # Nobody listens any more; the job itself notices and says so.
                return

    teller = threading.Thread(target=tell, name="watching", daemon=True)
    teller.start()
    try:
        yield partial(_run_counted, counts)
    finally:
        over.set()
        teller.join()


def _run_counted(counts: list[Any], task: Task) -> Built | BuildFailure:
    result = run_or_say_why(task)
    if isinstance(task, BuildTask) and isinstance(result, Built):
        for count, done in zip(counts, (task.bytes, len(task.pieces), result.rows), strict=True):
            count.add(done)
    return result
