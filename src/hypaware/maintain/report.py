"""What maintenance did to one dataset: INTERFACE's keys, and what a user would ask next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hypaware.lake.metadata import DataFile


def many(count: int, thing: str) -> str:
    """A number of things, in words."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


@dataclass
class Report:
    dataset: str
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    rows_expired: int = 0
    rows_held: int = 0
    snapshots_expired: int = 0
    reasons: list[str] = field(default_factory=list)
    """What was done, or would be, or why not: a sentence each."""
    dropped: list[dict[str, Any]] = field(default_factory=list)
    """`{source, day, files, rows, bytes}`: days that retention has dropped, or would."""
    rewritten: list[dict[str, Any]] = field(default_factory=list)
    """`{source, day, files, bytes}`: what compaction has made fewer files of, or would; as they were before."""
    partitions_compacted: int = 0
    partitions_left: int = 0
    """Due, and not done: no time was left."""
    twins_removed: int = 0
    rows_without_time: int = 0
    held: list[dict[str, Any]] = field(default_factory=list)
    """`{source, day, rows, sinks, since, until}`: what retention would drop and waits with, for whom."""
    orphans_removed: int = 0
    orphan_bytes: int = 0
    set_aside: list[str] = field(default_factory=list)
    """Files that a rebuild could not read."""
    errors: list[str] = field(default_factory=list)
    """Parts that failed, while the others went on."""

    def before(self, files: list[DataFile]) -> None:
        self.files_before, self.bytes_before = len(files), sum(file.bytes for file in files)

    def after(self, files: list[DataFile]) -> None:
        self.files_after, self.bytes_after = len(files), sum(file.bytes for file in files)

    def foretell(self, files: list[DataFile], come: int, come_bytes: int) -> None:
        """Of a dry run: what would be left of the files, and what would come."""
        self.files_after = len(files) + come
        self.bytes_after = sum(file.bytes for file in files) + come_bytes

    def drop(self, files: Iterable[DataFile]) -> None:
        for (source, day), held in _by_partition(files):
            rows = sum(file.rows for file in held)
            self.dropped.append({**_partition(source, day, held), "rows": rows})

    def rewrite(self, files: Iterable[DataFile]) -> None:
        """What is told of a partition twice is told as one."""
        known = {(each["source"], each["day"]): each for each in self.rewritten}
        for (source, day), held in _by_partition(files):
            told = _partition(source, day, held)
            if (before := known.get((told["source"], told["day"]))) is None:
                self.rewritten.append(told)
            else:
                before["files"] += told["files"]
                before["bytes"] += told["bytes"]
        self.rewritten.sort(key=lambda each: (each["source"], each["day"]))

    def as_json(self) -> dict[str, Any]:
        told = asdict(self)
        reasons = told.pop("reasons")
        return {**told, "reason": "; ".join(reasons) or "nothing to do"}


def _by_partition(files: Iterable[DataFile]) -> list[tuple[tuple[str, str], list[DataFile]]]:
    found: defaultdict[tuple[str, str], list[DataFile]] = defaultdict(list)
    for file in files:
        found[file.source, str(file.day)].append(file)
    return sorted(found.items())


def _partition(source: str, day: str, files: Sequence[DataFile]) -> dict[str, Any]:
    return {"source": source, "day": day, "files": len(files), "bytes": sum(file.bytes for file in files)}
