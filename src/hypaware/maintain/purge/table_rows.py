"""Purging one table: find rows, set tombstones, rewrite, commit, remove history. Only files with a match are rewritten.

The job holds `turns.keeping`; flushes, imports, queries and deliveries continue. The locks of the streams are held for
the commit only: then no delivery is between reading a row and sending it, and every later one reads the table without
the rows.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from hypaware import durable, faults
from hypaware.errors import Retryable
from hypaware.export.locks import stream_lock
from hypaware.lake import metadata, secure, tombstones, turns
from hypaware.lake.build import KEY_BYTES, BuildFailure
from hypaware.lake.committer import Change, LakeTable
from hypaware.lake.keys import KeyIndex
from hypaware.lake.metadata import DataFile
from hypaware.maintain import generation
from hypaware.maintain.purge import copies, rewriting, settled, sweep
from hypaware.maintain.purge.finding import FileFound, FindTask, candidates, tasks
from hypaware.maintain.purge.purging import Gone, Purging, Removed
from hypaware.model.datasets import Dataset
from hypaware.state import streams
from hypaware.state.stream_key import StreamKey

_after_bury = faults.point("maintain.purge.after-bury", "the rows have tombstones and are still in the lake")
_after_rewrite = faults.point(
    "maintain.purge.after-rewrite", "files without the rows are written, nothing references them"
)
_before_commit = faults.point("maintain.purge.before-commit", "the table still references the files that hold the rows")
_after_commit = faults.point("maintain.purge.after-commit", "the rows are removed from the table, not from disk")
_after_keys = faults.point("maintain.purge.after-keys", "the key index no longer knows the rows")
_before_forget = faults.point(
    "maintain.purge.before-forget", "older snapshots still reference the files that hold the rows"
)
_after_manifests = faults.point(
    "maintain.purge.after-manifests", "the current manifests no longer describe the files, older snapshots do"
)
_after_forget = faults.point("maintain.purge.after-forget", "no snapshot references the files that held the rows")

_TASKS_AT_ONCE = 16
# Time limits for running deliveries, and for other jobs that may read older snapshots.
_DELIVERY_TIMEOUT = 60.0
_READER_TIMEOUT = 10.0


def remove(context: Purging, dataset: Dataset, tombstone_ids: Sequence[int], removed_rows: Gone) -> Removed:
    """Remove the rows from the dataset's table."""
    result = Removed(dataset.name)
    with turns.keeping(dataset.name, context.check_cancelled):
        settled.settle(context, dataset, removed_rows)
        table = context.lake.table(dataset)
        files = {file.path: file for file in _live(context, dataset)}
        matches = _find(context, dataset, table, files, tombstone_ids, result, removed_rows)
        if matches:
            _replace_files(context, dataset, table, files, matches, result, removed_rows)
        _remove_history(context, dataset, result, removed_rows)
    return result


def _live(context: Purging, dataset: Dataset) -> list[DataFile]:
    entry = metadata.entry(context.home, dataset.name)
    return list(metadata.remembered_files(metadata.read(entry.metadata))) if entry else []


def _find(
    context: Purging,
    dataset: Dataset,
    table: LakeTable,
    files: dict[Path, DataFile],
    tombstone_ids: Sequence[int],
    result: Removed,
    removed_rows: Gone,
) -> list[FileFound]:
    """Search in batches, setting tombstones after each; return the files that hold such rows."""
    files_to_search = candidates(list(files.values()), context.selector)
    pending_tasks = list(tasks(dataset, files_to_search, context.selector, table.gateway_id))
    matches: list[FileFound] = []
    removed_rows.clean |= files.keys() - {path for path, _ in files_to_search}
    for start in range(0, len(pending_tasks), _TASKS_AT_ONCE):
        context.check_cancelled()
        context.progress(f"searching {dataset.name}", result.files_looked_at, len(files_to_search))
        hashes = [bytearray() for _ in context.selector.values]
        for match in _run_tasks(context, pending_tasks[start : start + _TASKS_AT_ONCE]):
            result.files_looked_at += 1
            result.unattributed += match.unattributed
            if not match.rows:
                removed_rows.clean.add(match.path)
                continue
            source = files[match.path].source
            result.rows += match.rows
            result.sources[source] += match.rows
            removed_rows.rows += match.rows
            removed_rows.seqs.setdefault((dataset.name, source), match.seqs[:0]).extend(match.seqs)
            for packed, value_hashes in zip(match.hashes, hashes, strict=True):
                value_hashes += packed
            removed_rows.add(match.ids, [key for packed in match.hashes for key in _split(packed)])
            match.hashes, match.seqs = [], match.seqs[:0]
            matches.append(match)
        # A purge by time needs no tombstones for parts.
        for tombstone_id, packed in zip(
            tombstone_ids if context.selector.kind != "before" else (), hashes, strict=False
        ):
            if packed:
                tombstones.bury(context.home, tombstone_id, _split(packed))
    _bury_other_ids(context, dataset, tombstone_ids, removed_rows)
    if matches:
        _after_bury()
    return matches


def _bury_other_ids(context: Purging, dataset: Dataset, tombstone_ids: Sequence[int], removed_rows: Gone) -> None:
    """Set tombstones for other ids of the same rows, which only the key index knows."""
    seqs = [seq for (name, _), sequences in removed_rows.seqs.items() if name == dataset.name for seq in sequences]
    if not seqs or not context.home.keys.is_file() or context.selector.kind == "before":
        return
    with closing(KeyIndex(context.home.keys)) as index:
        other_keys = index.find_keys(seqs) if index.has_match_keys(dataset.name) else set()
    for tombstone_id in tombstone_ids:
        tombstones.bury(context.home, tombstone_id, other_keys)


def _run_tasks(context: Purging, pending_tasks: list[FindTask]) -> Iterator[FileFound]:
    for result in context.lake.run(pending_tasks):
        if isinstance(result, BuildFailure):
            raise Retryable(f"{pending_tasks[0].dataset}: search failed: {result.reason}", kind="purge_failed")
        yield from result.reports


def _replace_files(
    context: Purging,
    dataset: Dataset,
    table: LakeTable,
    files: dict[Path, DataFile],
    matches: list[FileFound],
    result: Removed,
    removed_rows: Gone,
) -> None:
    partial_matches = [match for match in matches if not match.is_whole_file]
    written = rewriting.without_rows(
        context, dataset, table, [(files[match.path], match.rows) for match in partial_matches]
    )
    _after_rewrite()
    change = Change("purge", [files[match.path] for match in matches], written, summary={"hyp.purge": context.id})
    try:
        with (
            _lock_streams(context, dataset, {files[match.path].source for match in matches}),
            turns.changing(dataset.name, context.check_cancelled),
        ):
            secure.secure(context.home, dataset.name)
            removed_rows.copies += copies.of(context, dataset.name, removed_rows.seqs)
            with _without_keys(context, dataset, table, removed_rows):
                _before_commit()
                context.lake.table(dataset).replace_files(change)
                secure.secure(context.home, dataset.name)
                _after_commit()
            _after_keys()
    except BaseException:
        # If the outcome of the commit is unknown, live files are not touched.
        live = {file.path for file in _live(context, dataset)}
        for file in written:
            if file.path not in live:
                file.path.unlink(missing_ok=True)
        raise
    removed_rows.clean |= {file.path for file in written}
    result.files_rewritten, result.files_removed = len(partial_matches), len(matches) - len(partial_matches)


@contextmanager
def _lock_streams(context: Purging, dataset: Dataset, sources: set[str]) -> Iterator[None]:
    """Hold the locks of the sources' streams: those in the state, and those that could start now."""
    with context.store.reading() as connection:
        known_keys = {stream.key for stream in streams.all_streams(connection)}
    keys = {StreamKey(sink, dataset.name, source) for sink in context.config.sinks for source in sources}
    keys |= {key for key in known_keys if key.dataset == dataset.name and key.source in sources}
    deadline = time.monotonic() + _DELIVERY_TIMEOUT
    with ExitStack() as held:
        for key in sorted(keys):
            context.check_cancelled()
            held.enter_context(stream_lock(context.home, key, max(0.0, deadline - time.monotonic())))
        yield


@contextmanager
def _without_keys(context: Purging, dataset: Dataset, table: LakeTable, removed_rows: Gone) -> Iterator[None]:
    """Remove the keys around the commit: a row that may come back must not be taken for one that is present.

    The keys are removed first. After a kill in between, the index adds the keys of the rows that the lake still has.
    """
    path = context.home.keys
    if not path.is_file() or (context.selector.kind == "before" and context.is_permanent):
        # A purge by time has no tombstones for parts: a row that comes again with another time is recognised by its
        # key.
        yield
        return
    with closing(KeyIndex(path)) as index:
        through = index.indexed_through(dataset.name, table.uuid)
        index.remove_rows(
            dataset.name, (seq for (name, _), seqs in removed_rows.seqs.items() if name == dataset.name for seq in seqs)
        )
        yield
        if through:
            index.mark_complete(dataset.name, through)


def _remove_history(context: Purging, dataset: Dataset, result: Removed, removed_rows: Gone) -> None:
    """Remove the history, even if no row was found: an earlier purge may have been killed before this step."""
    abandoned = generation.abandoned(context.home, dataset.name)
    if result.rows or abandoned:
        _wait_for_readers(context)
    with turns.changing(dataset.name, context.check_cancelled):
        generation.clear(context.home, dataset.name)
        # Everything that a rebuild left behind is a copy.
        for folder in generation.abandoned(context.home, dataset.name):
            shutil.rmtree(folder)
            durable.fsync_dir(folder.parent)
        strays = sweep.strays(context, dataset, removed_rows)
        if result.rows or strays or context.resumed:
            secure.secure(context.home, dataset.name)
            _before_forget()
            table = context.lake.table(dataset)
            if context.history.describe_live_files_only(table):
                secure.secure(context.home, dataset.name)
                _after_manifests()
            context.history.expire(table)
            secure.secure(context.home, dataset.name)
            _after_forget()
        result.orphans_removed = sweep.sweep(context, dataset, strays)


def _wait_for_readers(context: Purging) -> None:
    if not turns.wait_for_others(time.time(), _READER_TIMEOUT, context.check_cancelled):
        context.note("a running job may read files that are removed now; if it fails, run it again")


def _split(packed: bytes | bytearray) -> list[bytes]:
    whole = bytes(packed)
    return [whole[start : start + KEY_BYTES] for start in range(0, len(whole), KEY_BYTES)]
