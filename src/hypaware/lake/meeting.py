"""Bringing together what a flush has built and what the lake holds of the same things: the driver's side of settling.

While no fallback row has come into a table, nothing is kept for it. The first one has all rows of the table taken in
(`keep`), and from then on builds note native rows as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from hypaware.errors import Retryable
from hypaware.home import Home
from hypaware.lake import match_index, metadata, settlement_files, settlements
from hypaware.lake.build import BuildFailure, Built
from hypaware.lake.committer import Lake, LakeTable
from hypaware.lake.keys import KeyIndex, pairs
from hypaware.lake.meetings import Meetings, MeetTask
from hypaware.lake.settle import Settled, settle
from hypaware.model.datasets import Dataset

_FILES_AT_ONCE = 16


def keep(home: Home, lake: Lake, index: KeyIndex, table: LakeTable, dataset: Dataset) -> None:
    """From now on; all that the lake holds is taken in first, some at a time: others use the index meanwhile."""
    for result in _scanned(home, lake, table, dataset, after=0, every=True):
        with index.changing() as db:
            match_index.add(db, result.meetings, ())
    with index.changing() as db:
        match_index.keep(db, dataset.name)


def fill(home: Home, lake: Lake, index: KeyIndex, table: LakeTable, dataset: Dataset, after: int) -> None:
    """Takes in what the lake holds above a sequence: what settled rows were before, and how others can be met."""
    if dataset.settling is None:
        return
    kept = index.matches(dataset.name)
    is_met = False
    for result in _scanned(home, lake, table, dataset, after, every=kept):
        is_met = is_met or any(result.notes)
        with index.staged(pairs(result.keys, result.seqs), result.meetings if kept else ()) as staged:
            staged.commit(dataset.name, table.uuid, after)
    if is_met and not kept:
        keep(home, lake, index, table, dataset)


def take_in_settlements(home: Home, index: KeyIndex, table: LakeTable, dataset: Dataset) -> None:
    """The ids that rows will have are theirs from now on."""
    if dataset.settling is None:
        return
    there = {f"{dataset.name}/{path.name}": path for path in settlement_files.files(home, dataset.name)}
    known = {name for name in index.taken_in() if name.startswith(f"{dataset.name}/")}
    if there.keys() == known:
        return
    told: dict[str, list[tuple[bytes, int]]] = {}
    for name in sorted(there.keys() - known):
        # One that cannot be read tells nothing; a compaction says so and sets it aside.
        with suppress(settlements.Damaged):
            told[name] = list(settlements.keys(dataset, there[name], table.gateway_id))
    # A row that a rollback took away is not there to be settled: its native record may come again.
    found = sorted((key, seq) for pairs_ in told.values() for key, seq in pairs_ if seq <= table.floor)
    with index.changing() as db:
        db.executemany("INSERT OR IGNORE INTO keys VALUES (?, ?)", found)
        match_index.add(db, (), [seq for _, seq in found])
        match_index.note_taken_in(db, dataset.name, (known & there.keys()) | told.keys())


def noted(lake: Lake, table: LakeTable, dataset: Dataset, results: Sequence[Built]) -> list[Built]:
    """What a build that did not ask for it would have told of its native rows, read from what it has written."""
    found = []
    for result in results:
        tasks = [MeetTask(dataset.name, file.path, 0, table.gateway_id, every=True) for file in result.files]
        meetings = Meetings()
        for told in _run(lake, dataset, tasks):
            for met in told.meetings:
                meetings.add(met)
        found.append(replace(result, meetings=meetings))
    return found


def settled(index: KeyIndex, results: Sequence[Built], left_out: frozenset[int]) -> Settled:
    """Which rows of a flush are records of a thing that has a row already. `left_out` are its duplicates."""
    if not any(len(result.meetings) for result in results):
        return Settled()
    new = sorted(
        (met for result in results for met in result.meetings if met.seq not in left_out), key=lambda met: met.seq
    )
    known = index.free(met.hash for met in new)
    return settle(new, known)


def _scanned(home: Home, lake: Lake, table: LakeTable, dataset: Dataset, after: int, *, every: bool) -> Iterator[Built]:
    entry = metadata.entry(home, dataset.name)
    held = metadata.remembered_files(metadata.read(entry.metadata)) if entry else []
    tasks = [
        MeetTask(dataset.name, file.path, after, table.gateway_id, every)
        for file in held
        if file.max_seq is None or file.max_seq > after
    ]
    for start in range(0, len(tasks), _FILES_AT_ONCE):
        yield from _run(lake, dataset, tasks[start : start + _FILES_AT_ONCE])


def _run(lake: Lake, dataset: Dataset, tasks: Sequence[MeetTask]) -> Iterator[Built]:
    for result in lake.run(tasks):
        if isinstance(result, BuildFailure):
            raise Retryable(f"{dataset.name}: its rows could not be read: {result.reason}", kind="scan_failed")
        yield result
