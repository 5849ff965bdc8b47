"""Poison: rows that make a build fail are singled out by halving, so that nothing behind them waits.

A segment may fail PATIENCE times with its neighbours; the next time it is built alone, in halves, until the guilty
rows stand alone. They are set aside with the reason, the rest is committed. A crash counts as a failure as well (the
rows may have caused it), but only a build that failed under our eyes is held against a row.

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
    alone = [replace(task, pieces=(piece,)) for task in tasks for piece in task.pieces]
    return [built for task in alone for built in _halve(lake, task)]


def _halve(lake: Lake, task: BuildTask) -> list[Built]:
    """Builds the task's one slice, in ever smaller halves where it fails."""
    (result,) = lake.run([task])
    if isinstance(result, Built):
        return [result]
    if result.surroundings:
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
    """A full disk or the like: no row is to blame, they wait."""
    return Retryable(
        f"{task.dataset}: building the rows failed: {failure.reason}; they wait where they are", kind="build_failed"
    )
