"""The report of maintenance on one dataset: the documented JSON keys, and details."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hypaware.lake.metadata import DataFile


def many(count: int, thing: str) -> str:
    """Return the count with its noun, in the plural unless it is one."""
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
    """`{source, day, files, rows, bytes}`: days that retention dropped, or would drop."""
    rewritten: list[dict[str, Any]] = field(default_factory=list)
    """`{source, day, files, bytes}`: partitions that compaction rewrote, or would; counted before the rewrite."""
    partitions_compacted: int = 0
    partitions_left: int = 0
    """Due but not done, because the time was up."""
    twins_removed: int = 0
    rows_without_time: int = 0
    held: list[dict[str, Any]] = field(default_factory=list)
    """`{source, day, rows, sinks, since, until}`: rows that are due but held for a sink."""
    orphans_removed: int = 0
    orphan_bytes: int = 0
    set_aside: list[str] = field(default_factory=list)
    """Files that a rebuild could not read."""
    errors: list[str] = field(default_factory=list)
    """Steps that failed; the other steps were run."""

    def set_before(self, files: list[DataFile]) -> None:
        self.files_before, self.bytes_before = len(files), sum(file.bytes for file in files)

    def set_after(self, files: list[DataFile]) -> None:
        self.files_after, self.bytes_after = len(files), sum(file.bytes for file in files)

    def set_dry_run(self, files: list[DataFile], added: int, added_bytes: int) -> None:
        """Set the figures of a dry run: the files that would remain plus those that would be added."""
        self.files_after = len(files) + added
        self.bytes_after = sum(file.bytes for file in files) + added_bytes

    def add_dropped(self, files: Iterable[DataFile]) -> None:
        for (source, day), members in _by_partition(files):
            rows = sum(file.rows for file in members)
            self.dropped.append({**_partition(source, day, members), "rows": rows})

    def add_rewritten(self, files: Iterable[DataFile]) -> None:
        """Count the files by partition; files of a partition counted before are added to its entry."""
        by_partition = {(each["source"], each["day"]): each for each in self.rewritten}
        for (source, day), members in _by_partition(files):
            entry = _partition(source, day, members)
            if (previous := by_partition.get((entry["source"], entry["day"]))) is None:
                self.rewritten.append(entry)
            else:
                previous["files"] += entry["files"]
                previous["bytes"] += entry["bytes"]
        self.rewritten.sort(key=lambda each: (each["source"], each["day"]))

    def as_json(self) -> dict[str, Any]:
        entry = asdict(self)
        reasons = entry.pop("reasons")
        return {**entry, "reason": "; ".join(reasons) or "nothing to do"}


def _by_partition(files: Iterable[DataFile]) -> list[tuple[tuple[str, str], list[DataFile]]]:
    partitions: defaultdict[tuple[str, str], list[DataFile]] = defaultdict(list)
    for file in files:
        partitions[file.source, str(file.day)].append(file)
    return sorted(partitions.items())


def _partition(source: str, day: str, files: Sequence[DataFile]) -> dict[str, Any]:
    return {"source": source, "day": day, "files": len(files), "bytes": sum(file.bytes for file in files)}
