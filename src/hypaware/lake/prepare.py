"""The part of a flush before its commit: build the files, keep what was refused, leave out what is a duplicate.

Nothing here is named by anything yet; if any of it fails, the flush is burnt and its segments wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from hypaware import faults
from hypaware.errors import HypError, Retryable
from hypaware.home import Home
from hypaware.lake import isolate, keyring, rejects
from hypaware.lake.build import BuildFailure, BuildTask, Built, BuiltFile, Slice
from hypaware.lake.committer import Lake, LakeTable
from hypaware.lake.keys import KeyIndex, pairs
from hypaware.state.flushes import Flush, Outcome

_after_build = faults.point("lake.build.after-write", "data files are written, nothing names them")

_SLICE_BYTES = 8 << 20

Work = list[tuple[BuildTask, Built]]


@dataclass(frozen=True)
class Prepared:
    files: list[BuiltFile]
    keys: list[tuple[bytes, int]]
    duplicates: int
    refused: int

    def outcome(self) -> Outcome:
        high_water: dict[str, int] = {}
        for file in self.files:
            high_water[file.source] = max(file.max_seq, high_water.get(file.source, 0))
        return Outcome(high_water, sum(file.rows for file in self.files), self.duplicates, self.refused)


class RowsAtFault(HypError):
    """A build failed because of its rows: those of the named segments, as far as anybody can tell."""

    def __init__(self, reason: str, guilty: tuple[str, ...]) -> None:
        super().__init__(reason, kind="rows_at_fault")
        self.segments = guilty


def prepare(
    home: Home, lake: Lake, table: LakeTable, index: KeyIndex, flush: Flush, paths: dict[str, Path]
) -> Prepared:
    work = _build(lake, flush, _tasks(table, flush, paths))
    _after_build()
    refused = [reject for _, built in work for reject in built.rejects]
    rejects.write(home, flush, refused)
    losers = keyring.duplicates(index, [built for _, built in work])
    work = _without(lake, work, losers)
    return Prepared(
        files=[file for _, built in work for file in built.files],
        keys=[pair for _, built in work for pair in pairs(built.keys, built.seqs)],
        duplicates=len(losers),
        refused=len(refused),
    )


def _build(lake: Lake, flush: Flush, tasks: list[BuildTask]) -> Work:
    if any(segment.attempts > isolate.PATIENCE for segment in flush.segments):
        return isolate.build_apart(lake, tasks)
    work: Work = []
    failed: list[tuple[BuildTask, BuildFailure]] = []
    for task, result in zip(tasks, lake.build(tasks), strict=True):
        if isinstance(result, BuildFailure):
            failed.append((task, result))
        else:
            work.append((task, result))
    for task, failure in failed:
        if failure.surroundings and failure.segment is None:
            raise isolate.surroundings_failed(task, failure)
    if failed:
        suspects = tuple(name for task, failure in failed for name in _suspects(task, failure))
        raise RowsAtFault(failed[0][1].reason, suspects)
    return work


def _suspects(task: BuildTask, failure: BuildFailure) -> list[str]:
    return [failure.segment] if failure.segment else [piece.segment for piece in task.slices]


def _without(lake: Lake, work: Work, losers: set[int]) -> Work:
    """Only what holds a duplicate is built again, without it."""
    if not losers:
        return work
    again = [place for place, (_, built) in enumerate(work) if not losers.isdisjoint(built.seqs)]
    tasks = [keyring.leaving_out(*work[place], losers) for place in again]
    for place, task, result in zip(again, tasks, lake.build(tasks), strict=True):
        if isinstance(result, BuildFailure):
            raise Retryable(f"{task.dataset}: building the rows again failed: {result.reason}", kind="build_failed")
        work[place] = (task, result)
    return work


def _tasks(table: LakeTable, flush: Flush, paths: dict[str, Path]) -> list[BuildTask]:
    """Slices of about equal bytes; a large segment is shared out, small neighbours share a task."""
    lots: list[list[Slice]] = [[]]
    filled = 0
    for segment in flush.segments:
        path = paths[segment.name]
        size = path.stat().st_size
        pieces = max(1, min(segment.rows, -(-size // _SLICE_BYTES)))
        for start, stop in pairwise(segment.rows * piece // pieces for piece in range(pieces + 1)):
            if filled >= _SLICE_BYTES:
                lots.append([])
                filled = 0
            lots[-1].append(Slice(segment.name, path, segment.base, start, stop))
            filled += size // pieces
    field_ids = dict(table.field_ids)
    return [BuildTask(flush.dataset, flush.id, tuple(lot), table.data_root, field_ids) for lot in lots if lot]
