"""What maintenance did to one dataset: INTERFACE's keys, and what a user would ask next."""

from __future__ import annotations

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

    def as_json(self) -> dict[str, Any]:
        told = asdict(self)
        reasons = told.pop("reasons")
        return {**told, "reason": "; ".join(reasons) or "nothing to do"}
