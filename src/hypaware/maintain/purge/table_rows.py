"""The rows of one table: find, bury, rewrite, commit, forget. Only files that hold such a row are written again.

Nobody else keeps the table meanwhile (`turns.keeping`); flushes, imports, queries and deliveries go on. The locks of
the streams are taken for the commit only: no round is between reading a row and sending it then, and each later one
reads the table as it is without the rows.
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
_after_rewrite = faults.point("maintain.purge.after-rewrite", "files without the rows are written, nothing names them")
_before_commit = faults.point("maintain.purge.before-commit", "the table still names the files that hold the rows")
_after_commit = faults.point("maintain.purge.after-commit", "the rows are gone from the table, not from the disk")
_after_keys = faults.point("maintain.purge.after-keys", "the key index does not know the rows any more")
_before_forget = faults.point("maintain.purge.before-forget", "older snapshots still name the files that hold the rows")
_after_manifests = faults.point(
    "maintain.purge.after-manifests", "the table's manifests do not tell of the files any more, older snapshots do"
)
_after_forget = faults.point("maintain.purge.after-forget", "no snapshot names the files that held the rows")

_TASKS_AT_ONCE = 16
# How long rounds of delivery may take to come to their end, and other jobs that may be reading older snapshots.
_PATIENCE = 60.0
_FOR_READERS = 10.0


def remove(purging: Purging, dataset: Dataset, stones: Sequence[int], gone: Gone) -> Removed:
    removed = Removed(dataset.name)
    with turns.keeping(dataset.name, purging.check_cancelled):
        settled.settle(purging, dataset, gone)
        table = purging.lake.table(dataset)
        files = {file.path: file for file in _live(purging, dataset)}
        found = _find(purging, dataset, table, files, stones, removed, gone)
        if found:
            _replace(purging, dataset, table, files, found, removed, gone)
        _forget(purging, dataset, removed, gone)
    return removed


def _live(purging: Purging, dataset: Dataset) -> list[DataFile]:
    entry = metadata.entry(purging.home, dataset.name)
    return list(metadata.remembered_files(metadata.read(entry.metadata))) if entry else []


def _find(
    purging: Purging,
    dataset: Dataset,
    table: LakeTable,
    files: dict[Path, DataFile],
    stones: Sequence[int],
    removed: Removed,
    gone: Gone,
) -> list[FileFound]:
    """Lot by lot, each with its tombstones; the files that hold such rows."""
    due = candidates(list(files.values()), purging.selector)
    work = list(tasks(dataset, due, purging.selector, table.gateway_id))
    found: list[FileFound] = []
    gone.clean |= files.keys() - {path for path, _ in due}
    for start in range(0, len(work), _TASKS_AT_ONCE):
        purging.check_cancelled()
        purging.progress(f"looking through {dataset.name}", removed.files_looked_at, len(due))
        hashes = [bytearray() for _ in purging.selector.values]
        for each in _looked(purging, work[start : start + _TASKS_AT_ONCE]):
            removed.files_looked_at += 1
            removed.unsaid += each.unsaid
            if not each.rows:
                gone.clean.add(each.path)
                continue
            source = files[each.path].source
            removed.rows += each.rows
            removed.sources[source] += each.rows
            gone.rows += each.rows
            gone.seqs.setdefault((dataset.name, source), each.seqs[:0]).extend(each.seqs)
            for packed, of_value in zip(each.hashes, hashes, strict=True):
                of_value += packed
            gone.add(each.ids, [key for packed in each.hashes for key in _split(packed)])
            each.hashes, each.seqs = [], each.seqs[:0]
            found.append(each)
        # Time that is closed needs no parts.
        for stone, packed in zip(stones if purging.selector.kind != "before" else (), hashes, strict=False):
            if packed:
                tombstones.bury(purging.home, stone, _split(packed))
    _bury_other_ids(purging, dataset, stones, gone)
    if found:
        _after_bury()
    return found


def _bury_other_ids(purging: Purging, dataset: Dataset, stones: Sequence[int], gone: Gone) -> None:
    """Those of other records of the same rows, which only the key index knows."""
    seqs = [seq for (name, _), some in gone.seqs.items() if name == dataset.name for seq in some]
    if not seqs or not purging.home.keys.is_file() or purging.selector.kind == "before":
        return
    with closing(KeyIndex(purging.home.keys)) as index:
        others = index.keys_of(seqs) if index.matches(dataset.name) else set()
    for stone in stones:
        tombstones.bury(purging.home, stone, others)


def _looked(purging: Purging, work: list[FindTask]) -> Iterator[FileFound]:
    for result in purging.lake.run(work):
        if isinstance(result, BuildFailure):
            raise Retryable(f"{work[0].dataset}: looking for the rows failed: {result.reason}", kind="purge_failed")
        yield from result.notes


def _replace(
    purging: Purging,
    dataset: Dataset,
    table: LakeTable,
    files: dict[Path, DataFile],
    found: list[FileFound],
    removed: Removed,
    gone: Gone,
) -> None:
    partly = [each for each in found if not each.whole]
    written = rewriting.without_rows(purging, dataset, table, [(files[each.path], each.rows) for each in partly])
    _after_rewrite()
    change = Change("purge", [files[each.path] for each in found], written, summary={"hyp.purge": purging.id})
    try:
        with (
            _streams(purging, dataset, {files[each.path].source for each in found}),
            turns.changing(dataset.name, purging.check_cancelled),
        ):
            secure.secure(purging.home, dataset.name)
            gone.copies += copies.of(purging, dataset.name, gone.seqs)
            with _without_keys(purging, dataset, table, gone):
                _before_commit()
                purging.lake.table(dataset).change(change)
                secure.secure(purging.home, dataset.name)
                _after_commit()
            _after_keys()
    except BaseException:
        # Where nobody knows whether it landed, what is live is not touched.
        live = {file.path for file in _live(purging, dataset)}
        for each in written:
            if each.path not in live:
                each.path.unlink(missing_ok=True)
        raise
    gone.clean |= {each.path for each in written}
    removed.files_rewritten, removed.files_removed = len(partly), len(found) - len(partly)


@contextmanager
def _streams(purging: Purging, dataset: Dataset, sources: set[str]) -> Iterator[None]:
    """No round of the sources' streams is under way; those that the state has, and those that may begin now."""
    with purging.store.reading() as connection:
        known = {stream.key for stream in streams.all_streams(connection)}
    wanted = {StreamKey(sink, dataset.name, source) for sink in purging.config.sinks for source in sources}
    wanted |= {key for key in known if key.dataset == dataset.name and key.source in sources}
    deadline = time.monotonic() + _PATIENCE
    with ExitStack() as held:
        for key in sorted(wanted):
            purging.check_cancelled()
            held.enter_context(stream_lock(purging.home, key, max(0.0, deadline - time.monotonic())))
        yield


@contextmanager
def _without_keys(purging: Purging, dataset: Dataset, table: LakeTable, gone: Gone) -> Iterator[None]:
    """Within it the rows go: a row that may come back must not be taken for one that is there.

    The keys go first. Killed in between, the index takes in once more what the lake then has.
    """
    path = purging.home.keys
    if not path.is_file() or (purging.selector.kind == "before" and purging.closes):
        # A closed time has no tombstones of parts: a row that comes again with another time is known by its key.
        yield
        return
    with closing(KeyIndex(path)) as index:
        through = index.through(dataset.name, table.uuid)
        index.forget(dataset.name, (seq for (of, _), seqs in gone.seqs.items() if of == dataset.name for seq in seqs))
        yield
        if through:
            index.trust(dataset.name, through)


def _forget(purging: Purging, dataset: Dataset, removed: Removed, gone: Gone) -> None:
    """Also where no row was found: an earlier purge may have been killed before this."""
    left = generation.abandoned(purging.home, dataset.name)
    if removed.rows or left:
        _let_readers_finish(purging)
    with turns.changing(dataset.name, purging.check_cancelled):
        generation.clear(purging.home, dataset.name)
        # What a rebuild has left behind is all of it a copy.
        for folder in generation.abandoned(purging.home, dataset.name):
            shutil.rmtree(folder)
            durable.fsync_dir(folder.parent)
        strays = sweep.strays(purging, dataset, gone)
        if removed.rows or strays or purging.again:
            secure.secure(purging.home, dataset.name)
            _before_forget()
            table = purging.lake.table(dataset)
            if purging.history.describe_live_files_only(table):
                secure.secure(purging.home, dataset.name)
                _after_manifests()
            purging.history.expire(table)
            secure.secure(purging.home, dataset.name)
            _after_forget()
        removed.orphans_removed = sweep.sweep(purging, dataset, strays)


def _let_readers_finish(purging: Purging) -> None:
    if not turns.wait_for_others(time.time(), _FOR_READERS, purging.check_cancelled):
        purging.note("a job that is still running may read what is removed now; if it fails, run it again")


def _split(packed: bytes | bytearray) -> list[bytes]:
    whole = bytes(packed)
    return [whole[start : start + KEY_BYTES] for start in range(0, len(whole), KEY_BYTES)]
