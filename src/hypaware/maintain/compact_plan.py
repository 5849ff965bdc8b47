"""The compaction plan: which files of which (source, day) are rewritten, decided from the table's metadata alone.

The newest files of each source (the hot tail) are left alone, because flushes keep adding to them: a day that contains
some of them waits until more files have accumulated. Plans converge: a rewrite leaves at most one small file, and files
are only rewritten if their number at least halves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TypeVar

from hypaware.iceberg.metadata import DataFile
from hypaware.lake import TARGET_FILE_BYTES

TAIL_FILES = 2
_COLD_FROM = 2
_HOT_FROM = 4
# The most that one task reads. Rows are limited too: the task holds their keys in memory.
_TASK_BYTES = 128 << 20
_TASK_ROWS = 500_000
# The most that is rewritten in parallel and committed at once: the work that a kill can cost.
_BATCH_BYTES = 256 << 20
_BATCH_FILES = 2_000
_BATCH_TASKS = 16
PartitionKey = tuple[str, date]
Item = TypeVar("Item")


@dataclass(frozen=True)
class RewriteGroup:
    """Small files of one (source, day), in sequence order, that one task rewrites."""

    source: str
    day: date
    files: tuple[DataFile, ...]

    @property
    def partition(self) -> PartitionKey:
        return self.source, self.day

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def files_after(self, target: int = TARGET_FILE_BYTES) -> int:
        """Estimate the number of resulting files from the total size."""
        return max(1, -(-self.bytes // target))


def plan_compaction(
    files: Iterable[DataFile],
    *,
    force: bool = False,
    target: int = TARGET_FILE_BYTES,
    must_rewrite: Callable[[DataFile], bool] = lambda file: False,
) -> list[RewriteGroup]:
    """Return the groups to rewrite, the partition with the most files first.

    `force` includes the tail and every group that gets fewer files. Files for which `must_rewrite` is true hold rows
    that must change; they are rewritten regardless of number and size.
    """
    numbered = [file for file in files if is_numbered(file)]
    tail = set() if force else _tail(numbered)
    by_partition: defaultdict[PartitionKey, list[DataFile]] = defaultdict(list)
    for file in numbered:
        if file.day is not None:
            by_partition[file.source, file.day].append(file)
    found: list[list[RewriteGroup]] = []
    for (source, day), files_of_partition in by_partition.items():
        required = {file for file in files_of_partition if must_rewrite(file)}
        small = [file for file in files_of_partition if file not in tail and file.bytes < target * 3 // 4]
        chosen: list[RewriteGroup] = []
        if len(small) >= (_COLD_FROM if tail.isdisjoint(files_of_partition) else _HOT_FROM):
            pieces = _split_partition(source, day, small)
            chosen = [piece for piece in pieces if _is_worthwhile(piece, force, target)]
        if uncovered := required.difference(*(group.files for group in chosen)):
            chosen += _split_partition(source, day, uncovered)
        if chosen:
            found.append(chosen)
    found.sort(key=lambda chosen: (-sum(len(group.files) for group in chosen), chosen[0].source, chosen[0].day))
    return [group for chosen in found for group in chosen]


def batch_groups(groups: Iterable[RewriteGroup]) -> Iterator[list[RewriteGroup]]:
    """Yield the groups in order, in batches that may be rewritten and committed together."""
    limits = (_BATCH_BYTES, _BATCH_FILES, _BATCH_TASKS)
    return split_by_weight(groups, limits, lambda group: (group.bytes, len(group.files), 1))


def split_by_weight(
    items: Iterable[Item], limits: Sequence[int], weigh: Callable[[Item], Sequence[int]]
) -> Iterator[list[Item]]:
    """Split the items, in order, into lists whose weights add up to at most the limits. A heavier item is alone."""
    group: list[Item] = []
    totals = [0] * len(limits)
    for item in items:
        weights = weigh(item)
        totals = [total + weight for total, weight in zip(totals, weights, strict=True)]
        if group and any(total > limit for total, limit in zip(totals, limits, strict=True)):
            yield group
            group, totals = [], list(weights)
        group.append(item)
    if group:
        yield group


def count_partitions(groups: Iterable[RewriteGroup]) -> int:
    return len({group.partition for group in groups})


def is_numbered(file: DataFile) -> bool:
    """Return whether the file's sequence range is known; files of other programs may lack it."""
    return file.min_seq is not None and file.max_seq is not None and file.sequenced == file.rows


def _tail(files: Iterable[DataFile]) -> set[DataFile]:
    """Return the newest files of each source."""
    by_source: defaultdict[str, list[DataFile]] = defaultdict(list)
    for file in sorted(files, key=lambda file: (file.max_seq or 0, file.location), reverse=True):
        if len(by_source[file.source]) < TAIL_FILES:
            by_source[file.source].append(file)
    return {file for newest in by_source.values() for file in newest}


def _split_partition(source: str, day: date, files: Iterable[DataFile]) -> list[RewriteGroup]:
    """Split the files, in sequence order, into groups that one task can read."""
    in_order = sorted(files, key=lambda file: (file.min_seq or 0, file.max_seq or 0, file.location))
    groups = split_by_weight(in_order, (_TASK_BYTES, _TASK_ROWS), lambda file: (file.bytes, file.rows))
    return [RewriteGroup(source, day, tuple(group)) for group in groups]


def _is_worthwhile(group: RewriteGroup, force: bool, target: int) -> bool:
    before, after = len(group.files), group.files_after(target)
    return before > after if force else before >= 2 * after
