"""Poison: rows that make a build fail are singled out by halving, so that nothing behind them waits.

A segment may fail PATIENCE times with its neighbours; the next time it is built alone, in halves, until the guilty
rows stand alone. They are set aside with the reason, the rest is committed. A crash counts as a failure as well (the
rows may have caused it), but only a build that failed under our eyes is held against a row.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from hypaware.errors import Retryable
from hypaware.lake.build import BuildFailure, BuildTask, Built, Reject, Slice
from hypaware.lake.committer import Lake

PATIENCE = 2


def build_apart(lake: Lake, tasks: list[BuildTask]) -> list[tuple[BuildTask, Built]]:
    alone = [replace(task, slices=(piece,)) for task in tasks for piece in task.slices]
    return [built for task in alone for built in _halve(lake, task)]


def _halve(lake: Lake, task: BuildTask) -> list[tuple[BuildTask, Built]]:
    """Builds the task's one slice, in ever smaller halves where it fails."""
    (result,) = lake.build([task])
    if isinstance(result, Built):
        return [(task, result)]
    if result.surroundings:
        raise surroundings_failed(task, result)
    (piece,) = task.slices
    if piece.stop - piece.start == 1:
        return [(task, _set_aside(piece, result.reason))]
    middle = (piece.start + piece.stop) // 2
    halves = (replace(piece, stop=middle), replace(piece, start=middle))
    return [built for half in halves for built in _halve(lake, replace(task, slices=(half,)))]


def _set_aside(piece: Slice, reason: str) -> Built:
    with open(piece.path, "rb") as file:
        lines = list(islice(enumerate(file), piece.start, piece.stop))
    return Built(rejects=[Reject(piece.segment, ordinal, reason, line) for ordinal, line in lines])


def surroundings_failed(task: BuildTask, failure: BuildFailure) -> Retryable:
    """A full disk or the like: no row is to blame, they wait."""
    return Retryable(
        f"{task.dataset}: building the rows failed: {failure.reason}; they wait in the spool", kind="build_failed"
    )
