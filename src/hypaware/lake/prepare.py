"""The part of a flush before its commit: build the files, keep what was refused, leave out what is a duplicate.

Nothing here is named by anything yet; if any of it fails, the flush is burnt and its rows wait where they are.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypaware import faults
from hypaware.errors import HypError, Retryable
from hypaware.home import Home
from hypaware.lake import barred, isolate, keyring, meeting, rejects, settlement_files, tombstones
from hypaware.lake.build import BuildFailure, BuildTask, Built
from hypaware.lake.committer import Lake, LakeTable
from hypaware.lake.keys import KeyIndex, pairs
from hypaware.lake.meetings import Met
from hypaware.lake.partitions import BuiltFile, Place
from hypaware.lake.thin import ThinTask, without_keys
from hypaware.model import datasets
from hypaware.model.datasets import Dataset
from hypaware.state.flushes import Flush, Outcome

_after_build = faults.point("lake.build.after-write", "data files are written, nothing names them")
_after_thin = faults.point(
    "lake.thin.after-write", "files that held duplicates are written again without them, what they settle is kept"
)


@dataclass(frozen=True)
class Ready:
    """A table that may be written to, and the index of its keys, brought up to it."""

    table: LakeTable
    index: KeyIndex


@dataclass(frozen=True)
class Prepared:
    files: list[BuiltFile]
    keys: list[tuple[bytes, int]]
    """Of the rows; and of those that were left out for a record of the same thing, with that one's sequence."""
    duplicates: frozenset[int]
    refused: int
    notes: list[Any] = field(default_factory=list)
    purged: frozenset[int] = frozenset()
    """Sequences of rows that were purged before, and kept out."""
    purged_rejects: int = 0
    settled: frozenset[int] = frozenset()
    """Sequences of native rows that settle rows of the lake instead of being rows of their own."""
    meetings: list[Met] = field(default_factory=list)
    met: list[int] = field(default_factory=list)

    def outcome(self) -> Outcome:
        high_water: dict[str, int] = {}
        for file in self.files:
            high_water[file.source] = max(file.max_seq, high_water.get(file.source, 0))
        rows = sum(file.rows for file in self.files)
        kept_out = len(self.purged) + self.purged_rejects
        return Outcome(high_water, rows, len(self.duplicates), self.refused, kept_out, len(self.settled))


class RowsAtFault(HypError):
    """A build failed because of its rows: those of the named segments, as far as anybody can tell."""

    def __init__(self, reason: str, guilty: tuple[str, ...]) -> None:
        super().__init__(reason, kind="rows_at_fault")
        self.segments = guilty


def prepare(home: Home, lake: Lake, ready: Ready, flush: Flush, tasks: Sequence[BuildTask]) -> Prepared:
    stones, dataset = tombstones.read(home), datasets.get(flush.dataset)
    tasks = [
        replace(task, closed=stones.closed, meets_all=stones.has_parts or ready.index.matches(dataset.name))
        for task in tasks
    ]
    built = _noted(home, lake, ready, dataset, [_without_withdrawn(each) for each in _build(lake, flush, tasks)])
    _after_build()
    kept_out = barred.settle(stones, dataset, tasks[0].own_gateway if tasks else None, built)
    rejects.write(home, flush, kept_out.refused)
    losers = keyring.duplicates(ready.index, built) - kept_out.written
    settled = meeting.settled(ready.index, built, losers | kept_out.written)
    same = {**settled.dropped, **settled.settled}
    aliases = [(key, same[seq]) for key, seq in _pairs(built) if seq in same]
    left_out = losers.union(kept_out.written, settled.dropped, settled.settled)
    if left_out or any(each.withdrawn for each in built):
        built = _without(home, lake, tasks[0], built, left_out, settled.settled)
        _after_thin()
    return Prepared(
        files=[file for each in built for file in each.files],
        keys=[*_pairs(built), *aliases],
        duplicates=losers.union(settled.dropped),
        refused=len(kept_out.refused),
        notes=[note for each in built for note in each.notes],
        purged=kept_out.all,
        purged_rejects=kept_out.rejects,
        settled=frozenset(settled.settled),
        meetings=[met for each in built for met in each.meetings] if ready.index.matches(dataset.name) else [],
        met=settled.met,
    )


def _noted(home: Home, lake: Lake, ready: Ready, dataset: Dataset, built: list[Built]) -> list[Built]:
    """The first row without its own id that comes into a table makes it known how all the others can be met."""
    if not any(each.meetings.has_fallback for each in built) or ready.index.matches(dataset.name):
        return built
    meeting.keep(home, lake, ready.index, ready.table, dataset)
    return meeting.noted(lake, ready.table, dataset, built)


def _pairs(built: Sequence[Built]) -> Iterator[tuple[bytes, int]]:
    return (pair for each in built for pair in pairs(each.keys, each.seqs))


def _build(lake: Lake, flush: Flush, tasks: Sequence[BuildTask]) -> list[Built]:
    if any(segment.attempts > isolate.PATIENCE for segment in flush.segments):
        return isolate.build_apart(lake, tasks)
    built: list[Built] = []
    failed: list[tuple[BuildTask, BuildFailure]] = []
    for task, result in zip(tasks, lake.run(tasks), strict=True):
        if isinstance(result, BuildFailure):
            failed.append((task, result))
        else:
            built.append(result)
    for task, failure in failed:
        if failure.surroundings and failure.segment is None:
            raise isolate.surroundings_failed(task, failure)
    if failed:
        raise RowsAtFault(failed[0][1].reason, tuple(name for each in failed for name in _suspects(*each)))
    return built


def _suspects(task: BuildTask, failure: BuildFailure) -> tuple[str, ...]:
    return (failure.segment,) if failure.segment else task.suspects


def _without_withdrawn(built: Built) -> Built:
    """A row that was taken back keeps no other from being written, and was not kept out either."""
    if not built.withdrawn:
        return built
    purged = array("q", (seq for seq in built.purged if not any(seq in each for each in built.withdrawn)))
    taken_back = {seq for each in built.withdrawn for seq in built.seqs if seq in each}
    return replace(without_keys(built, taken_back) if taken_back else built, purged=purged)


def _without(
    home: Home, lake: Lake, task: BuildTask, built: list[Built], losers: frozenset[int], settles: Mapping[int, int]
) -> list[Built]:
    """Only files that hold a duplicate, or what was taken back, are written again without it."""
    thinned = list(built)
    work: list[tuple[int, ThinTask]] = []
    for place, each in enumerate(built):
        drop = losers.intersection(each.seqs)
        settling = {seq: settles[seq] for seq in drop if seq in settles}
        if drop and len(drop) == each.rows and not each.withdrawn and not settling:
            for file in each.files:
                file.path.unlink(missing_ok=True)
            thinned[place] = without_keys(each, drop)
            thinned[place].files = []
        elif drop or each.withdrawn:
            where = Place(task.data_root, task.flush_id, min(each.seqs, default=0))
            kept = settlement_files.folder(home, task.dataset) / f"{task.flush_id}-{min(settling, default=0)}.parquet"
            work.append((place, ThinTask(task.dataset, each, where, drop, settling, kept)))
    for (place, _), result in zip(work, lake.run([each for _, each in work]), strict=True):
        if isinstance(result, BuildFailure):
            raise Retryable(f"{task.dataset}: taking duplicates out failed: {result.reason}", kind="build_failed")
        thinned[place] = result
    return thinned
