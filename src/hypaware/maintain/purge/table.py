"""Purging one table: find rows, set tombstones, rewrite, commit, remove history. Only files with a match are rewritten.

The locks of the streams are held for the commit only: then no delivery is between reading a row and sending it, and
every later one reads the table without the rows. Pending settlements are applied first, so that rows are found under
their final ids. The files that held the rows before are removed, too.

A killed flush, compaction or purge leaves unreferenced files, and older manifests contain column bounds, including the
beginnings of texts: those that hold or describe purged rows are removed. Unreferenced data files without a purged row
stay, because they may have been left by a rollback.
"""

from __future__ import annotations

import shutil
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from hypaware import faults
from hypaware.config.shared_lake import find_shared_lake
from hypaware.engine import jobs as engine_jobs
from hypaware.errors import LakeError, Retryable
from hypaware.export.stream_locks import lock_stream
from hypaware.home import durable_files
from hypaware.home.storage import is_durable
from hypaware.iceberg import fsync, metadata
from hypaware.iceberg.metadata import CatalogEntry, DataFile, TableMetadata
from hypaware.lake import tombstones
from hypaware.lake.build import BuildFailure, BuiltFile, OutputPaths
from hypaware.lake.key_index import KeyIndex
from hypaware.lake.rewrite import RewriteBalance, RewriteTask
from hypaware.lake.table import LakeTable, TableChange, commit_lock, maintenance_lock
from hypaware.maintain import compact, rebuild
from hypaware.maintain.apply_settlements import PendingSettlements
from hypaware.maintain.context import MaintenanceContext, MaintenanceReport, discard_files
from hypaware.maintain.purge import copies, other_machines, search
from hypaware.maintain.purge.context import PurgeContext, PurgedTable, RemovedRows
from hypaware.maintain.purge.search import FileMatches, split_hashes
from hypaware.maintain.purge.selector import RowPredicate
from hypaware.model import datasets
from hypaware.model.datasets import Dataset
from hypaware.state import streams
from hypaware.state.streams import StreamKey

_after_sweep = faults.crash_point("maintain.purge.after-sweep", "files that held the rows are deleted from disk")
# Only the holder of the maintenance lock writes such files, which is this job.
_MAINTENANCE_PREFIXES = ("purge-", "keep-")
_after_bury = faults.crash_point("maintain.purge.after-bury", "the rows have tombstones and are still in the lake")
_after_rewrite = faults.crash_point(
    "maintain.purge.after-rewrite", "files without the rows are written, nothing references them"
)
_before_commit = faults.crash_point(
    "maintain.purge.before-commit", "the table still references the files that hold the rows"
)
_after_commit = faults.crash_point("maintain.purge.after-commit", "the rows are removed from the table, not from disk")
_after_keys = faults.crash_point("maintain.purge.after-keys", "the key index no longer knows the rows")
_before_forget = faults.crash_point(
    "maintain.purge.before-forget", "older snapshots still reference the files that hold the rows"
)
_after_manifests = faults.crash_point(
    "maintain.purge.after-manifests", "the current manifests no longer describe the files, older snapshots do"
)
_after_forget = faults.crash_point("maintain.purge.after-forget", "no snapshot references the files that held the rows")
_TASKS_AT_ONCE = 16
# Time limits for running deliveries, and for other jobs that may read older snapshots.
_DELIVERY_TIMEOUT = 60.0
_READER_TIMEOUT = 10.0


def apply_all_settlements(context: PurgeContext, removed_rows: RemovedRows) -> None:
    present = {entry.name for entry in metadata.list_tables(context.home)}
    for dataset in datasets.list_all():
        if dataset.match_rules is not None and dataset.name in present - context.damaged:
            with maintenance_lock(dataset.name, context.check_cancelled):
                apply_table_settlements(context, dataset, removed_rows)


def apply_table_settlements(context: PurgeContext, dataset: Dataset, removed_rows: RemovedRows) -> None:
    """Apply the settlements of one table. The caller holds the maintenance lock."""
    pending = PendingSettlements.read(context.home, dataset)
    entry = metadata.find_table(context.home, dataset.name)
    if not pending or entry is None:
        return
    live = metadata.iter_cached_files(metadata.read_metadata(entry.metadata))
    replaced = {file.path for file in live if pending.affects(file)}
    arguments = (context.home, context.config, context.store, context.lake, dataset, datetime.now(UTC))
    maintenance = MaintenanceContext(
        *arguments, progress=context.progress, note=context.note, check_cancelled=context.check_cancelled
    )
    report = MaintenanceReport(dataset.name)
    compact.Compaction(maintenance, report, settlements_only=True).run()
    if report.errors:
        raise Retryable(report.errors[0], kind="purge_failed")
    removed_rows.replaced |= replaced


def purge_table(
    context: PurgeContext,
    dataset: Dataset,
    tombstone_ids: Sequence[int],
    removed_rows: RemovedRows,
    *,
    by_sessions: bool = False,
) -> PurgedTable:
    """Purge one table. `by_sessions` says that the selector names the sessions of the folders that are purged."""
    purge = _TablePurge(context, dataset, tombstone_ids, removed_rows, PurgedTable(dataset.name), by_sessions)
    with maintenance_lock(dataset.name, context.check_cancelled):
        apply_table_settlements(context, dataset, removed_rows)
        purge.run()
    return purge.result


@dataclass(frozen=True)
class _TablePurge:
    context: PurgeContext
    dataset: Dataset
    tombstone_ids: Sequence[int]
    removed_rows: RemovedRows
    result: PurgedTable
    by_sessions: bool

    def run(self) -> None:
        table = self.context.lake.table(self.dataset)
        files = {file.path: file for file in self._live_files()}
        if matches := self._find_rows(table, files):
            self._replace_files(table, files, matches)
        self._remove_history()

    def _live_files(self) -> list[DataFile]:
        return list(metadata.iter_cached_files(metadata.read_metadata(self._entry().metadata)))

    def _entry(self) -> CatalogEntry:
        found = metadata.find_table(self.context.home, self.dataset.name)
        assert found is not None
        return found

    def _sequences(self) -> dict[tuple[str, str], array[int]]:
        """Return the sequences of the table's removed rows by (dataset, source)."""
        return {key: seqs for key, seqs in self.removed_rows.seqs.items() if key[0] == self.dataset.name}

    def _all_sequences(self) -> Iterator[int]:
        yield from (seq for seqs in self._sequences().values() for seq in seqs)

    def _find_rows(self, table: LakeTable, files: dict[Path, DataFile]) -> list[FileMatches]:
        """Search in batches, setting tombstones after each; return the files that hold such rows."""
        context, matches = self.context, list[FileMatches]()

        def progress(message: str, done: int, total: int) -> None:
            context.check_cancelled()
            context.progress(message, done, total)

        # A purge by time needs no tombstones for parts.
        parts_of = self.tombstone_ids if context.selector.kind != "before" else ()
        for batch in search.search_table(
            self.dataset, files.values(), context.selector, table.gateway_id, context.lake.run, progress
        ):
            hashes = [bytearray() for _ in context.selector.values]
            for match in batch:
                self.result.add(match, files[match.path].source, self.removed_rows)
                if match.rows:
                    for packed, value_hashes in zip(match.hashes, hashes, strict=True):
                        value_hashes += packed
                    match.hashes, match.seqs = [], match.seqs[:0]
                    matches.append(match)
            if self.by_sessions:
                # A session may have worked in any of the folders.
                hashes = [bytearray().join(hashes)] * len(parts_of)
            for tombstone_id, packed in zip(parts_of, hashes, strict=False):
                if packed:
                    tombstones.add_parts(self.context.home, tombstone_id, split_hashes(packed))
        self.removed_rows.clean |= files.keys() - {match.path for match in matches}
        seqs = list(self._all_sequences())
        if seqs and parts_of and context.home.keys.is_file():
            # Only the key index knows other ids of the same rows.
            with closing(KeyIndex(context.home.keys)) as index:
                other_keys = index.find_keys(seqs) if index.has_match_keys(self.dataset.name) else set()
            for tombstone_id in parts_of:
                tombstones.add_parts(context.home, tombstone_id, other_keys)
        if matches:
            _after_bury()
        return matches

    def _replace_files(self, table: LakeTable, files: dict[Path, DataFile], matches: list[FileMatches]) -> None:
        name = self.dataset.name
        replaced = [files[match.path] for match in matches]
        written = self._rewrite(table, [(files[each.path], each.rows) for each in matches if not each.is_whole_file])
        _after_rewrite()
        change = TableChange("purge", replaced, written, summary={"hyp.purge": self.context.id})
        try:
            with (
                self._lock_streams({file.source for file in replaced}),
                commit_lock(name, self.context.check_cancelled),
            ):
                fsync.fsync_commit(self.context.home, name)
                self.removed_rows.copies += copies.list_copies(self.context.store, self._sequences())
                with self._without_keys(table):
                    _before_commit()
                    self.context.lake.table(self.dataset).replace_files(change)
                    fsync.fsync_commit(self.context.home, name)
                    _after_commit()
                _after_keys()
        except BaseException:
            # If the outcome of the commit is unknown, live files are not touched.
            live = {file.path for file in self._live_files()}
            for file in written:
                if file.path not in live:
                    file.path.unlink(missing_ok=True)
            raise
        self.removed_rows.clean |= {file.path for file in written}

    def _rewrite(self, table: LakeTable, files: list[tuple[DataFile, int]]) -> list[BuiltFile]:
        """Write new files, not yet referenced, for (file, number of matching rows)."""
        context, name = self.context, self.dataset.name
        field_ids, predicate = dict(table.field_ids), RowPredicate(context.selector, name)
        tasks = [
            RewriteTask(
                name,
                file.source,
                str(file.day),
                (file.path,),
                OutputPaths(table.data_root, context.id, file.min_seq or 0),
                field_ids,
                predicate,
            )
            for file, _ in files
        ]
        written: list[BuiltFile] = []
        try:
            for start in range(0, len(tasks), _TASKS_AT_ONCE):
                context.check_cancelled()
                context.progress(f"rewriting {name}", start, len(tasks))
                results = context.lake.run(tasks[start : start + _TASKS_AT_ONCE])
                for result, (file, rows) in zip(results, files[start:], strict=False):
                    if isinstance(result, BuildFailure):
                        reason = f"could not rewrite {file.path.name}: {result.reason}"
                        raise Retryable(f"{name}: {reason}", kind="purge_failed")
                    written += result.files
                    (counts,) = result.reports
                    assert isinstance(counts, RewriteBalance)
                    # Exactly the rows that were found are left out.
                    if not counts.balanced or len(counts.dropped) != rows or counts.rows_in != file.rows:
                        raise LakeError(
                            f"{name}: row counts of {file.path} do not match: expected {file.rows} rows, {rows} to "
                            f"remove; read {counts.rows_in} rows, {len(counts.dropped)} to remove; nothing was changed",
                            kind="purge_unbalanced",
                        )
        except BaseException:
            discard_files(written)
            raise
        return written

    @contextmanager
    def _lock_streams(self, sources: set[str]) -> Iterator[None]:
        """Hold the locks of the sources' streams: those in the state, and those that could start now."""
        context, name = self.context, self.dataset.name
        with context.store.reading() as connection:
            known_keys = {stream.key for stream in streams.list_streams(connection)}
        keys = {StreamKey(sink, name, source) for sink in context.config.sinks for source in sources}
        keys |= {key for key in known_keys if key.dataset == name and key.source in sources}
        deadline = time.monotonic() + _DELIVERY_TIMEOUT
        with ExitStack() as held:
            for key in sorted(keys):
                context.check_cancelled()
                held.enter_context(lock_stream(self.context.home, key, max(0.0, deadline - time.monotonic())))
            yield

    @contextmanager
    def _without_keys(self, table: LakeTable) -> Iterator[None]:
        """Remove the keys around the commit: a row that may come back must not be taken for one that is present.

        The keys are removed first. After a kill in between, the index adds the keys of the rows that the lake still
        has. A purge by time keeps them, because it sets no tombstones for parts: a row that comes again with another
        time is recognised by its key.
        """
        context, name = self.context, self.dataset.name
        if context.selector.kind == "before" and context.is_permanent:
            yield
            return
        noted = other_machines.noted_rows(context.home, context.store, name, self._all_sequences())
        with noted, self._without_own_keys(table):
            yield

    @contextmanager
    def _without_own_keys(self, table: LakeTable) -> Iterator[None]:
        name = self.dataset.name
        if not self.context.home.keys.is_file():
            yield
            return
        with closing(KeyIndex(self.context.home.keys)) as index:
            through = index.indexed_through(name, table.uuid)
            index.remove_rows(name, self._all_sequences())
            yield
            if through:
                index.mark_complete(name, through)

    def _remove_history(self) -> None:
        """Remove the history, even if no row was found: an earlier purge may have been killed before this step."""
        context, home, name = self.context, self.context.home, self.dataset.name
        has_leftovers = self.result.rows or rebuild.find_abandoned(home, name)
        if has_leftovers and not engine_jobs.wait_for_other_jobs(time.time(), _READER_TIMEOUT, context.check_cancelled):
            context.note("a running job may read files that are removed now; if it fails, run it again")
        with commit_lock(name, context.check_cancelled):
            rebuild.clear_unfinished(home, name)
            # Everything that a rebuild left behind is a copy.
            for folder in rebuild.find_abandoned(home, name):
                shutil.rmtree(folder)
                durable_files.fsync_dir(folder.parent)
            strays = self._find_strays()
            if self.result.rows or strays or context.resumed:
                fsync.fsync_commit(home, name)
                _before_forget()
                table = context.lake.table(self.dataset)
                if context.describe_live_files_only(table):
                    fsync.fsync_commit(home, name)
                    _after_manifests()
                table.expire(time.time() + 1)
                fsync.fsync_commit(home, name)
                _after_forget()
            existing = [path for path in strays if path.exists()]
            unneeded = [*existing, *_unreferenced_metadata(self._entry())]
            self._require_lease()
            for path in unneeded:
                path.unlink(missing_ok=True)
            for folder in {path.parent for path in unneeded if not is_durable(path)}:
                durable_files.fsync_dir(folder)
            _after_sweep()
            self.result.orphans_removed = len(existing)

    def _require_lease(self) -> None:
        """Raise StateError if another machine has taken over a shared lake: files found since then may be its own."""
        if find_shared_lake(self.context.home) is not None:
            with self.context.store.transaction():
                pass

    def _find_strays(self) -> list[Path]:
        """Return unreferenced data files that hold such rows or were left by a killed maintenance job."""
        context = self.context
        table_metadata = metadata.read_metadata(self._entry().metadata)
        live = {file.path.resolve() for file in metadata.iter_cached_files(table_metadata)}
        root = context.lake.table(self.dataset).data_root
        unreferenced = [path for path in root.rglob("*.parquet") if path.resolve() not in live]
        replaced = {path.resolve() for path in self.removed_rows.replaced}
        found = [path for path in unreferenced if path.resolve() in replaced]
        found += _left_by_maintenance(table_metadata, unreferenced)
        sized = [(path, path.stat().st_size) for path in unreferenced if path not in found]
        for result in context.lake.run(list(search.search_tasks(self.dataset, sized, context.selector, None))):
            if isinstance(result, BuildFailure):
                continue  # verification reports files that cannot be read
            found += [each.path for each in result.reports if each.rows]
            self.removed_rows.clean |= {each.path for each in result.reports if not each.rows}
        return found


def _left_by_maintenance(table_metadata: TableMetadata, unreferenced: list[Path]) -> list[Path]:
    """Return files written by maintenance that no snapshot references; a kill may have left them incomplete."""
    candidates = [path for path in unreferenced if path.name.startswith(_MAINTENANCE_PREFIXES)]
    if not candidates:
        return []
    manifests = {
        manifest.path: manifest
        for snapshot in table_metadata.snapshots
        if snapshot.manifest_list.is_file()
        for manifest in metadata.read_manifests(snapshot)
    }
    referenced = {
        file.path.resolve()
        for manifest in manifests.values()
        if manifest.path.is_file()
        for file in metadata.read_data_files(table_metadata, manifest)
    }
    return [path for path in candidates if path.resolve() not in referenced]


def _unreferenced_metadata(entry: CatalogEntry) -> list[Path]:
    """Return manifests and lists that neither the table nor, after a power cut, its previous metadata needs."""
    needed_snapshots = list(metadata.read_metadata(entry.metadata).snapshots)
    if entry.previous is not None and entry.previous.is_file():
        previous = metadata.read_metadata(entry.previous)
        needed_snapshots += [snapshot for snapshot in previous.snapshots if snapshot.id == previous.current_id]
    needed = set()
    for snapshot in needed_snapshots:
        if snapshot.manifest_list.is_file():
            needed.add(snapshot.manifest_list.resolve())
            needed |= {manifest.path.resolve() for manifest in metadata.read_manifests(snapshot)}
    return [path for path in entry.metadata.parent.glob("*.avro") if path.resolve() not in needed]
