"""Prepare a flush for its commit: build the files, store the rejects, and remove duplicates.

No table references the files yet. If a step fails, the flush is discarded and its rows stay where they are.
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

_after_build = faults.point("lake.build.after-write", "data files are written, no table references them")
_after_thin = faults.point(
    "lake.thin.after-write", "files with duplicates are rewritten without them, settlements are stored"
)


@dataclass(frozen=True)
class Ready:
    """A table that is ready for writing, and its key index, caught up with it."""

    table: LakeTable
    index: KeyIndex


@dataclass(frozen=True)
class Prepared:
    files: list[BuiltFile]
    keys: list[tuple[bytes, int]]
    """Keys of the rows, and of matched rows that were dropped, with the sequence of the row that was kept."""
    duplicates: frozenset[int]
    rejected: int
    reports: list[Any] = field(default_factory=list)
    purged: frozenset[int] = frozenset()
    """Sequences of rows that belong to a purge and were dropped."""
    purged_rejects: int = 0
    settled: frozenset[int] = frozenset()
    """Sequences of native rows that settle live rows of the lake and do not become rows themselves."""
    match_keys: list[Met] = field(default_factory=list)
    matched: list[int] = field(default_factory=list)

    def outcome(self) -> Outcome:
        high_water: dict[str, int] = {}
        for file in self.files:
            high_water[file.source] = max(file.max_seq, high_water.get(file.source, 0))
        rows = sum(file.rows for file in self.files)
        purged = len(self.purged) + self.purged_rejects
        return Outcome(high_water, rows, len(self.duplicates), self.rejected, purged, len(self.settled))


class RowsAtFault(HypError):
    """A build failed because of its rows, which are in the given segments as far as is known."""

    def __init__(self, reason: str, segments: tuple[str, ...]) -> None:
        super().__init__(reason, kind="rows_at_fault")
        self.segments = segments


def prepare(home: Home, lake: Lake, target: Ready, flush: Flush, tasks: Sequence[BuildTask]) -> Prepared:
    stones, dataset = tombstones.read(home), datasets.get(flush.dataset)
    tasks = [
        replace(
            task,
            purge_filter=stones.purge_filter,
            match_native=stones.has_parts or target.index.has_match_keys(dataset.name),
        )
        for task in tasks
    ]
    built = _noted(home, lake, target, dataset, [_without_withdrawn(each) for each in _build(lake, flush, tasks)])
    _after_build()
    purged = barred.settle(stones, dataset, tasks[0].own_gateway if tasks else None, built)
    rejects.write(home, flush, purged.rejects)
    duplicates = keyring.duplicates(target.index, built) - purged.written
    matches = meeting.settled(target.index, built, duplicates | purged.written)
    kept_seqs = {**matches.superseded, **matches.upgrades}
    aliases = [(key, kept_seqs[seq]) for key, seq in _pairs(built) if seq in kept_seqs]
    drop = duplicates.union(purged.written, matches.superseded, matches.upgrades)
    if drop or any(each.withdrawn for each in built):
        built = _without(home, lake, tasks[0], built, drop, matches.upgrades)
        _after_thin()
    return Prepared(
        files=[file for each in built for file in each.files],
        keys=[*_pairs(built), *aliases],
        duplicates=duplicates.union(matches.superseded),
        rejected=len(purged.rejects),
        reports=[report for each in built for report in each.reports],
        purged=purged.all,
        purged_rejects=purged.purged_rejects,
        settled=frozenset(matches.upgrades),
        match_keys=[key for each in built for key in each.match_keys]
        if target.index.has_match_keys(dataset.name)
        else [],
        matched=matches.matched,
    )


def _noted(home: Home, lake: Lake, target: Ready, dataset: Dataset, built: list[Built]) -> list[Built]:
    """Enable matching if this is the first flush of the table that contains live rows."""
    if not any(each.match_keys.has_live for each in built) or target.index.has_match_keys(dataset.name):
        return built
    meeting.keep(home, lake, target.index, target.table, dataset)
    return meeting.noted(lake, target.table, dataset, built)


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
        if failure.is_environmental and failure.segment is None:
            raise isolate.surroundings_failed(task, failure)
    if failed:
        raise RowsAtFault(failed[0][1].reason, tuple(name for each in failed for name in _suspects(*each)))
    return built


def _suspects(task: BuildTask, failure: BuildFailure) -> tuple[str, ...]:
    return (failure.segment,) if failure.segment else task.blamed_segments


def _without_withdrawn(built: Built) -> Built:
    """Drop the keys of withdrawn rows: they must not count as duplicates or as purged."""
    if not built.withdrawn:
        return built
    purged = array("q", (seq for seq in built.purged if not any(seq in each for each in built.withdrawn)))
    withdrawn = {seq for each in built.withdrawn for seq in built.seqs if seq in each}
    return replace(without_keys(built, withdrawn) if withdrawn else built, purged=purged)


def _without(
    home: Home, lake: Lake, task: BuildTask, built: list[Built], unwanted: frozenset[int], upgrades: Mapping[int, int]
) -> list[Built]:
    """Rewrite the files that contain unwanted or withdrawn rows."""
    results = list(built)
    work: list[tuple[int, ThinTask]] = []
    for index, each in enumerate(built):
        drop = unwanted.intersection(each.seqs)
        settles = {seq: upgrades[seq] for seq in drop if seq in upgrades}
        if drop and len(drop) == each.rows and not each.withdrawn and not settles:
            for file in each.files:
                file.path.unlink(missing_ok=True)
            results[index] = without_keys(each, drop)
            results[index].files = []
        elif drop or each.withdrawn:
            output = Place(task.data_root, task.flush_id, min(each.seqs, default=0))
            folder = settlement_files.folder(home, task.dataset)
            settlement = folder / f"{task.flush_id}-{min(settles, default=0)}.parquet"
            work.append((index, ThinTask(task.dataset, each, output, drop, settles, settlement)))
    for (index, _), result in zip(work, lake.run([each for _, each in work]), strict=True):
        if isinstance(result, BuildFailure):
            raise Retryable(
                f"{task.dataset}: could not remove duplicates from the new files: {result.reason}", kind="build_failed"
            )
        results[index] = result
    return results
