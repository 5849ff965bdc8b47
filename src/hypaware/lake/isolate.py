"""Isolate poison rows, which make a build fail, by bisection, so that they do not block the rows behind them.

A segment may fail PATIENCE times together with others. The next time it is built alone and bisected until the poison
rows are found. They become rejects with the reason, and the other rows are committed. A crash also counts as a failed
attempt of the segment, because the rows may have caused it, but a row is rejected only after an observed failure.

@ref flush#build
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypaware.errors import Retryable
from hypaware.lake.build import BuildFailure, BuildTask, Built, Reject
from hypaware.lake.committer import Lake
from hypaware.lake.slices import Slice

PATIENCE = 2


def build_apart(lake: Lake, tasks: Sequence[BuildTask]) -> list[Built]:
    single = [replace(task, pieces=(piece,)) for task in tasks for piece in task.pieces]
    return [built for task in single for built in _halve(lake, task)]


def _halve(lake: Lake, task: BuildTask) -> list[Built]:
    """Build the task's only slice, or its halves if that fails."""
    (result,) = lake.run([task])
    if isinstance(result, Built):
        return [result]
    if result.is_environmental:
        raise surroundings_failed(task, result)
    (piece,) = task.pieces
    assert isinstance(piece, Slice)
    if piece.stop - piece.start == 1:
        return [_set_aside(piece, result.reason)]
    middle = (piece.start + piece.stop) // 2
    halves = (replace(piece, stop=middle), replace(piece, start=middle))
    return [built for half in halves for built in _halve(lake, replace(task, pieces=(half,)))]


def _set_aside(piece: Slice, reason: str) -> Built:
    return Built(rejects=[Reject(piece.segment, ordinal, reason, line) for ordinal, line in piece.lines()])


def surroundings_failed(task: BuildTask, failure: BuildFailure) -> Retryable:
    """Return the error for a failure such as a full disk, for which no row is to blame."""
    return Retryable(
        f"{task.dataset}: could not write the rows ({failure.reason}); no row is lost, the next run retries them",
        kind="build_failed",
    )
