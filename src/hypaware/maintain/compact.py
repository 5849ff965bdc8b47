"""Compaction: rewrite the many small files of a (source, day) into few, with the rows in sequence order.

Tasks write the new files, and one commit per batch replaces the old ones; flushes, deliveries and queries continue. If
the process is killed at any point, the table holds every row once, and the next expiry removes unreferenced files. A
partition whose files cannot be read, or whose rows do not add up, is reported and left unchanged.

Live rows with a pending settlement get their native ids here (`apply_settlements`), and links to replaced ids are
corrected (`lake.links`), those to ids that this run replaced in its next pass. Duplicates are removed: a flush
lets none in, but two rows with one dedupe key can come in after the loss of the key index or from two programs. The
lowest sequence stays. A row without a key is never removed, nor is one whose sequence is not unique.

@ref keeping#compaction
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hypaware import faults, telemetry
from hypaware.errors import Cancelled, LakeError, Retryable
from hypaware.iceberg import fsync, metadata
from hypaware.iceberg.metadata import DataFile
from hypaware.lake import links
from hypaware.lake.build import BuildFailure, BuildResult, OutputPaths
from hypaware.lake.parquet import mask_own_rows
from hypaware.lake.rewrite import RewriteBalance, RewriteTask, read_columns
from hypaware.lake.table import LakeTable, NotCommitted, TableChange
from hypaware.maintain import apply_settlements, compact_plan
from hypaware.maintain.compact_plan import PartitionKey, RewriteGroup
from hypaware.maintain.context import MaintenanceContext, MaintenanceReport, count_by_partition, discard_files
from hypaware.model import datasets
from hypaware.model.datasets import GATEWAY, SEQ, Dataset
from hypaware.text import format_count

_KEY = "key"
_GATEWAY_KEY = "gateway"
_after_write = faults.crash_point("maintain.compact.after-write", "new files are written, nothing references them")
_before_commit = faults.crash_point("maintain.compact.before-commit", "new files are checked, not yet committed")
_after_commit = faults.crash_point(
    "maintain.compact.after-commit", "new files replace the old ones, the commit is not durable yet"
)
# The outputs of several tasks for one day are merged in the next pass. The limit keeps flushes from extending a run
# forever.
_PASSES = 8


def compact_dataset(context: MaintenanceContext, report: MaintenanceReport) -> None:
    with telemetry.span(
        "maintain.compact", component="maintain", operation="compact", hyp_dataset=context.dataset.name
    ) as span:
        compaction = Compaction(context, report)
        try:
            compaction.run()
        finally:
            done = compaction.done.values()
            span.set(
                files_before=sum(each.files_in for each in done),
                files_after=sum(each.files_out for each in done),
                bytes_before=sum(each.bytes_in for each in done),
                bytes_after=sum(each.bytes_out for each in done),
                twins_removed=report.twins_removed,
                partitions_left=report.partitions_left,
            )
            if compaction.failed:
                span.status("degraded")


class Compaction:
    """One run. With `settlements_only`, only files that hold a row with a pending settlement are rewritten."""

    def __init__(
        self, context: MaintenanceContext, report: MaintenanceReport, *, settlements_only: bool = False
    ) -> None:
        self._pending = apply_settlements.read_pending(context)
        self._links = links.StaleLinks()
        self._settlements_only = settlements_only
        self._context = context
        self._report = report
        self._name = context.dataset.name
        self.done: defaultdict[str, _SourceCounts] = defaultdict(_SourceCounts)
        self.failed: set[PartitionKey] = set()

    def run(self) -> None:
        groups = self._due()
        if self._context.dry_run:
            self._report_plan(groups)
            return
        try:
            for _ in range(_PASSES):
                left = self._rewrite_all(groups) if groups else []
                self._report.partitions_left = compact_plan.count_partitions(left)
                if left or not (groups := self._due()):
                    break
        finally:
            self._report_results()
            apply_settlements.remove_applied(self._context, self._pending)

    def _due(self) -> list[RewriteGroup]:
        table_metadata = self._context.table_metadata
        if metadata.has_delete_files(table_metadata):
            raise LakeError(
                f"{self._name}: another program has written delete files, so the table cannot be compacted",
                kind="delete_files",
                repair=f"hyp maintain {self._name} --rebuild",
            )
        files = self._context.effects.remaining(metadata.iter_cached_files(table_metadata))
        if self._settlements_only:
            files = [file for file in files if self._pending.affects(file)]
        else:
            self._links = links.find_stale_links(self._context.home, self._context.dataset, files)
        found = compact_plan.plan_compaction(files, force=self._context.force, must_rewrite=self._must_rewrite)
        return [group for group in found if group.partition not in self.failed]

    def _must_rewrite(self, file: DataFile) -> bool:
        return self._pending.affects(file) or self._links.affects(file)

    def _rewrite_all(self, groups: list[RewriteGroup]) -> list[RewriteGroup]:
        """Rewrite in batches; return the groups left over when the time is up."""
        with self._context.lock_table() as table:
            pass  # opening the table may commit a schema change
        started = 0
        for batch in compact_plan.batch_groups(groups):
            self._context.check_cancelled()
            if self._context.out_of_time:
                break
            self._context.progress(f"compacting {self._name}", started, len(groups))
            self._rewrite(batch, table)
            started += len(batch)
        return groups[started:]

    def _rewrite(self, batch: Sequence[RewriteGroup], table: LakeTable) -> None:
        tasks = [self._task(group, table) for group in batch]
        results = self._context.lake.run(tasks)
        if len(batch) > 1 and all(isinstance(result, BuildFailure) for result in results):
            # A task that kills its worker makes the whole batch fail: run each task alone to find it.
            results = [result for task in tasks for result in self._context.lake.run([task])]
        _after_write()
        # Every rewrite failed for lack of resources: a full disk, workers that do not start.
        environmental = [each for each in results if isinstance(each, BuildFailure) and each.is_environmental]
        if len(environmental) == len(results):
            raise Retryable(f"{self._name}: compaction stopped: {environmental[0].reason}", kind="compaction_stopped")
        verified: list[tuple[RewriteGroup, BuildResult]] = []
        for group, result in zip(batch, results, strict=True):
            if isinstance(result, BuildFailure):
                self._fail(group, result.reason)
                continue
            # All rows known to the table went in, and the same rows came out.
            balance = _balance(result)
            if balance.balanced and balance.rows_in == group.rows == result.rows + len(balance.dropped):
                verified.append((group, result))
            else:
                discard_files(result.files)
                self._fail(group, f"row counts do not match: {group.rows} rows expected, {balance}")
        if verified:
            self._commit(verified)

    def _commit(self, verified: Sequence[tuple[RewriteGroup, BuildResult]]) -> None:
        removed = [file for group, _ in verified for file in group.files]
        added = [file for _, built in verified for file in built.files]
        change = TableChange("compact", removed, added, summary={"hyp.maintain": self._context.id})
        _before_commit()
        try:
            with self._context.lock_table() as table:
                table.replace_files(change)
                _after_commit()
                fsync.fsync_commit(self._context.home, self._name)
        except Cancelled:
            # Raised while waiting for the lock.
            discard_files(added)
            raise
        except NotCommitted as error:
            discard_files(added)
            for group, _ in verified:
                self._fail(group, error.message)
            return
        for group, built in verified:
            self._pending.mark_applied(group.files)
            # Files that an earlier pass of this run wrote do not count.
            older = [file for file in group.files if not file.path.name.startswith(self._context.id)]
            self.done[group.source].add(group, built, older)
            count_by_partition(self._report.rewritten, older, "bytes")
            self._report.twins_removed += len(_balance(built).dropped)
        self._report.partitions_compacted = sum(len(each.days) for each in self.done.values())

    def _task(self, group: RewriteGroup, table: LakeTable) -> DeduplicatingTask:
        task = RewriteTask(
            self._name,
            group.source,
            group.day.isoformat(),
            tuple(file.path for file in group.files),
            OutputPaths(table.data_root, self._context.id, group.files[0].min_seq or 0),
            table.field_ids,
            patch=self._links.amendment(group.files, self._context.dataset, self._pending.amendment(group.files)),
        )
        return DeduplicatingTask(task, table.gateway_id)

    def _fail(self, group: RewriteGroup, reason: str) -> None:
        self.failed.add(group.partition)
        self._report.errors.append(f"{self._name}: could not compact {group.source} on {group.day}: {reason}")

    def _report_results(self) -> None:
        for source, done in sorted(self.done.items()):
            days = format_count(len(done.days), "day")
            self._report.reasons.append(
                f"compacted {days} of {source}: {done.files_in:,} files into {done.files_out:,}"
            )
        for path in self._pending.damaged:
            self._report.errors.append(
                f"{self._name}: removed the unreadable settlement file {path.name}; its rows keep the ids under which "
                "they were recorded until their transcripts are imported again"
            )
        if twins := self._report.twins_removed:
            self._context.note(f"{self._name}: removed {twins:,} duplicate rows")
        if left := self._report.partitions_left:
            self._report.reasons.append(f"{left:,} more partitions are due, but the time was up")
        self._report_unnumbered()

    def _report_plan(self, groups: Sequence[RewriteGroup]) -> None:
        effects = self._context.effects
        for group in groups:
            effects.removed.update(group.files)
            effects.files_added += group.files_after()
            effects.bytes_added += group.bytes
        effects.snapshots += sum(1 for _ in compact_plan.batch_groups(groups))
        count_by_partition(self._report.rewritten, (file for each in groups for file in each.files), "bytes")
        self._report.partitions_left = compact_plan.count_partitions(groups)
        for source in sorted({each.source for each in groups}):
            own = [each for each in groups if each.source == source]
            files, size = sum(len(each.files) for each in own), sum(each.bytes for each in own)
            days = format_count(len({each.day for each in own}), "day")
            self._report.reasons.append(f"would compact {days} of {source}: {files:,} files, {size / 1e6:,.1f} MB")
        self._report_unnumbered()

    def _report_unnumbered(self) -> None:
        if unnumbered := sum(not compact_plan.is_numbered(file) for file in self._context.files()):
            self._report.reasons.append(f"left {unnumbered:,} files without sequence statistics unchanged")


@dataclass
class _SourceCounts:
    days: set[date] = field(default_factory=set)
    files_in: int = 0
    files_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0

    def add(self, group: RewriteGroup, built: BuildResult, older: Sequence[DataFile]) -> None:
        """Count one rewrite. `older` are the files of the group that existed before this run."""
        old_bytes = sum(file.bytes for file in older)
        self.days.add(group.day)
        self.files_in += len(older)
        self.files_out += len(built.files) - (len(group.files) - len(older))
        self.bytes_in += old_bytes
        self.bytes_out += sum(file.bytes for file in built.files) - (group.bytes - old_bytes)


def _balance(built: BuildResult) -> RewriteBalance:
    (found,) = built.reports
    assert isinstance(found, RewriteBalance)
    return found


@dataclass(frozen=True)
class DeduplicatingTask:
    """A rewrite that leaves out later duplicates among the rows of its files. It reads only their key columns."""

    rewriting: RewriteTask
    own_gateway: str | None
    """The gateway of this home, as `datasets.hash_row_key` expects it."""

    def run(self) -> BuildResult:
        dataset = datasets.get(self.rewriting.dataset)
        duplicates = find_later_duplicates(dataset, self.rewriting.paths, self.own_gateway)
        return (replace(self.rewriting, exclude=SequenceFilter(duplicates)) if duplicates else self.rewriting).run()


@dataclass(frozen=True)
class SequenceFilter:
    seqs: tuple[int, ...]

    def select(self, rows: pa.Table) -> Any:
        return pc.is_in(rows.column(SEQ), value_set=pa.array(self.seqs, pa.int64()))


def find_later_duplicates(dataset: Dataset, paths: Sequence[Path], own_gateway: str | None) -> tuple[int, ...]:
    """Return the sequences of all duplicates in the files except the lowest of each key."""
    keyed = pa.concat_tables([_read_keys(dataset, path, own_gateway) for path in paths])
    with_key = keyed.filter(pc.is_valid(keyed.column(_KEY)))
    counts = with_key.group_by([_KEY, _GATEWAY_KEY], use_threads=False).aggregate([(SEQ, "count"), (SEQ, "min")])
    repeated = counts.filter(pc.greater(counts.column(f"{SEQ}_count"), 1))
    if not repeated.num_rows:
        return ()
    lowest = {(row[_KEY], row[_GATEWAY_KEY]): row[f"{SEQ}_min"] for row in repeated.to_pylist()}
    candidates = with_key.filter(
        pc.is_in(with_key.column(_KEY), value_set=repeated.column(_KEY).combine_chunks())
    ).to_pylist()
    later = [row[SEQ] for row in candidates if row[SEQ] > lowest.get((row[_KEY], row[_GATEWAY_KEY]), row[SEQ])]
    # Rows are left out by sequence, so a row that shares its sequence with another has to stay.
    occurrences = Counter(
        keyed.filter(pc.is_in(keyed.column(SEQ), value_set=pa.array(later, pa.int64())))[SEQ].to_pylist()
    )
    return tuple(sorted(seq for seq in later if occurrences[seq] == 1))


def _read_keys(dataset: Dataset, path: Path, own_gateway: str | None) -> pa.Table:
    """Return sequence, key and gateway of each row, as in `datasets.hash_row_key`; the home's own gateway is null."""
    columns = dict.fromkeys([SEQ, dataset.key_column, *dataset.key_parts])
    rows = read_columns(path, [*columns, GATEWAY])
    key = _text_column(rows, dataset.key_column)
    key = pc.if_else(pc.equal(key, ""), None, key)
    if dataset.key_parts:
        key = pc.coalesce(
            key, pc.binary_join_element_wise(*(_text_column(rows, part) for part in dataset.key_parts), "#")
        )
    gateway = _text_column(rows, GATEWAY)
    is_own = mask_own_rows(gateway, own_gateway) if own_gateway is not None else pa.scalar(True)
    return pa.table({SEQ: rows.column(SEQ), _KEY: key, _GATEWAY_KEY: pc.if_else(is_own, None, gateway)})


def _text_column(rows: pa.Table, name: str) -> Any:
    """Return a column as text, null if the file is older than the column."""
    return rows.column(name).cast(pa.string()) if name in rows.column_names else pa.nulls(len(rows), pa.string())
