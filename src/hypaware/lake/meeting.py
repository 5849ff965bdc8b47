"""Match the rows of a flush with rows of the lake that record the same part. Runs in the driver.

A table has no match keys until its first live row without an own id arrives. Then all rows of the table are indexed
(`keep`), and from then on builds record match keys of native rows too.
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
    """Start keeping match keys of a dataset. Index the lake's rows first, in batches, as other jobs use the index."""
    for result in _scanned(home, lake, table, dataset, after=0, every=True):
        with index.transaction() as db:
            match_index.add(db, result.match_keys, ())
    with index.transaction() as db:
        match_index.keep(db, dataset.name)


def fill(home: Home, lake: Lake, index: KeyIndex, table: LakeTable, dataset: Dataset, after: int) -> None:
    """Index the lake's rows above a sequence: former keys of settled rows, and match keys."""
    if dataset.match_rules is None:
        return
    enabled = index.has_match_keys(dataset.name)
    has_live = False
    for result in _scanned(home, lake, table, dataset, after, every=enabled):
        has_live = has_live or any(result.reports)
        with index.stage(pairs(result.keys, result.seqs), result.match_keys if enabled else ()) as staged:
            staged.commit(dataset.name, table.uuid, after)
    if has_live and not enabled:
        keep(home, lake, index, table, dataset)


def take_in_settlements(home: Home, index: KeyIndex, table: LakeTable, dataset: Dataset) -> None:
    """Index the keys that rows will have once their pending settlements are applied."""
    if dataset.match_rules is None:
        return
    pending = {f"{dataset.name}/{path.name}": path for path in settlement_files.files(home, dataset.name)}
    known = {name for name in index.indexed_settlements() if name.startswith(f"{dataset.name}/")}
    if pending.keys() == known:
        return
    read: dict[str, list[tuple[bytes, int]]] = {}
    for name in sorted(pending.keys() - known):
        # Skip an unreadable one; the next compaction reports and quarantines it.
        with suppress(settlements.Damaged):
            read[name] = list(settlements.keys(dataset, pending[name], table.gateway_id))
    # A row that a rollback removed cannot be settled; its native row may be imported again.
    found = sorted((key, seq) for pairs_ in read.values() for key, seq in pairs_ if seq <= table.floor)
    with index.transaction() as db:
        db.executemany("INSERT OR IGNORE INTO keys VALUES (?, ?)", found)
        match_index.add(db, (), [seq for _, seq in found])
        match_index.note_taken_in(db, dataset.name, (known & pending.keys()) | read.keys())


def noted(lake: Lake, table: LakeTable, dataset: Dataset, results: Sequence[Built]) -> list[Built]:
    """Add the match keys of native rows to the results of a build that did not record them."""
    found = []
    for result in results:
        tasks = [MeetTask(dataset.name, file.path, 0, table.gateway_id, every=True) for file in result.files]
        match_keys = Meetings()
        for scanned in _run(lake, dataset, tasks):
            for match_key in scanned.match_keys:
                match_keys.add(match_key)
        found.append(replace(result, match_keys=match_keys))
    return found


def settled(index: KeyIndex, results: Sequence[Built], excluded: frozenset[int]) -> Settled:
    """Match the rows of a flush, except for the `excluded` ones, with each other and with rows of the lake."""
    if not any(len(result.match_keys) for result in results):
        return Settled()
    new = sorted(
        (each for result in results for each in result.match_keys if each.seq not in excluded),
        key=lambda match_key: match_key.seq,
    )
    known = index.find_unmatched(match_key.hash for match_key in new)
    return settle(new, known)


def _scanned(home: Home, lake: Lake, table: LakeTable, dataset: Dataset, after: int, *, every: bool) -> Iterator[Built]:
    entry = metadata.entry(home, dataset.name)
    files = metadata.remembered_files(metadata.read(entry.metadata)) if entry else []
    tasks = [
        MeetTask(dataset.name, file.path, after, table.gateway_id, every)
        for file in files
        if file.max_seq is None or file.max_seq > after
    ]
    for start in range(0, len(tasks), _FILES_AT_ONCE):
        yield from _run(lake, dataset, tasks[start : start + _FILES_AT_ONCE])


def _run(lake: Lake, dataset: Dataset, tasks: Sequence[MeetTask]) -> Iterator[Built]:
    for result in lake.run(tasks):
        if isinstance(result, BuildFailure):
            raise Retryable(f"{dataset.name}: could not read rows of the lake: {result.reason}", kind="scan_failed")
        yield result
