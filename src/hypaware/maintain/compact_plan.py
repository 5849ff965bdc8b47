"""What compaction is due, told from a table's metadata alone: which files of which (source, day) become fewer.

The freshest files of each source, its hot tail, grow by themselves and are left alone: a day that has some of them
waits until much has gathered behind them. Plans converge: what a rewriting leaves behind is at most one small file, and
nothing is due unless it at least halves the number of the files that it takes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date

from hypaware.lake.metadata import DataFile
from hypaware.lake.sizes import TARGET_BYTES

TAIL_FILES = 2
_COLD_FROM = 2
_HOT_FROM = 4

# One task reads so much, as stored. Its rows are bounded too: it holds their keys in memory.
_TASK_BYTES = 128 << 20
_TASK_ROWS = 500_000
# So much is rewritten side by side and committed at once: what a kill may cost.
_LOT_BYTES = 256 << 20
_LOT_FILES = 2_000
_LOT_TASKS = 16

Partition = tuple[str, date]


@dataclass(frozen=True)
class Rewriting:
    """Small files of one (source, day), in the order of their sequences, that become few."""

    source: str
    day: date
    files: tuple[DataFile, ...]

    @property
    def partition(self) -> Partition:
        return self.source, self.day

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def files_after(self, target: int = TARGET_BYTES) -> int:
        """How many they become, reckoned from their size."""
        return max(1, -(-self.bytes // target))


def _nobody(_: DataFile) -> bool:
    return False


def due(
    files: Iterable[DataFile],
    *,
    force: bool = False,
    target: int = TARGET_BYTES,
    concerned: Callable[[DataFile], bool] = _nobody,
) -> list[Rewriting]:
    """The worst partition first. With `force` the tail too, and whatever gets fewer files.

    Files that are `concerned` hold rows that must change, and are due however many or large they are.
    """
    numbered = [file for file in files if is_numbered(file)]
    tail = set() if force else _tail(numbered)
    by_partition: defaultdict[Partition, list[DataFile]] = defaultdict(list)
    for file in numbered:
        if file.day is not None:
            by_partition[file.source, file.day].append(file)
    found: list[list[Rewriting]] = []
    for (source, day), held in by_partition.items():
        must = {file for file in held if concerned(file)}
        small = [file for file in held if file not in tail and is_small(file, target)]
        worth: list[Rewriting] = []
        if len(small) >= (_COLD_FROM if tail.isdisjoint(held) else _HOT_FROM):
            cuts = [Rewriting(source, day, cut) for cut in _cuts(small)]
            worth = [cut for cut in cuts if _pays(cut, force, target)]
        if left := must.difference(*(cut.files for cut in worth)):
            worth += [Rewriting(source, day, cut) for cut in _cuts(left)]
        if worth:
            found.append(worth)
    found.sort(key=lambda worth: (-sum(len(cut.files) for cut in worth), worth[0].source, worth[0].day))
    return [cut for worth in found for cut in worth]


def lots(rewritings: Sequence[Rewriting]) -> Iterator[list[Rewriting]]:
    """In their order, as many at a time as may be rewritten side by side."""
    lot: list[Rewriting] = []
    bytes_ = files = 0
    for each in rewritings:
        full = bytes_ + each.bytes > _LOT_BYTES or files + len(each.files) > _LOT_FILES or len(lot) == _LOT_TASKS
        if lot and full:
            yield lot
            lot, bytes_, files = [], 0, 0
        lot.append(each)
        bytes_, files = bytes_ + each.bytes, files + len(each.files)
    if lot:
        yield lot


def partitions(rewritings: Iterable[Rewriting]) -> int:
    return len({each.partition for each in rewritings})


def is_small(file: DataFile, target: int = TARGET_BYTES) -> bool:
    return file.bytes < target * 3 // 4


def is_numbered(file: DataFile) -> bool:
    """Whether its place in the order of sequences is known; other programs write files of which it is not."""
    return file.min_seq is not None and file.max_seq is not None and file.numbered == file.rows


def _tail(files: Iterable[DataFile]) -> set[DataFile]:
    by_source: defaultdict[str, list[DataFile]] = defaultdict(list)
    for file in files:
        by_source[file.source].append(file)
    return {file for held in by_source.values() for file in sorted(held, key=_by_last, reverse=True)[:TAIL_FILES]}


def _cuts(files: Iterable[DataFile]) -> Iterator[tuple[DataFile, ...]]:
    """By sequence, each no more than a task may read."""
    cut: list[DataFile] = []
    bytes_ = rows = 0
    for file in sorted(files, key=_by_first):
        if cut and (bytes_ + file.bytes > _TASK_BYTES or rows + file.rows > _TASK_ROWS):
            yield tuple(cut)
            cut, bytes_, rows = [], 0, 0
        cut.append(file)
        bytes_, rows = bytes_ + file.bytes, rows + file.rows
    if cut:
        yield tuple(cut)


def _pays(cut: Rewriting, force: bool, target: int) -> bool:
    before, after = len(cut.files), cut.files_after(target)
    return before > after if force else before >= 2 * after


def _by_first(file: DataFile) -> tuple[int, int, str]:
    return file.min_seq or 0, file.max_seq or 0, file.location


def _by_last(file: DataFile) -> tuple[int, str]:
    return file.max_seq or 0, file.location
