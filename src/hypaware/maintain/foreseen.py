"""The effects of a dry run so far. The next step starts from them, as it would in a real run.

The set of removed files is exact. The number of added files is exact as long as the files of one group fit into one
file; beyond that it is estimated from their sizes, as in the plan. Rewritten files count with their old size, because
the new size is known only after writing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hypaware.lake.metadata import DataFile
from hypaware.maintain.compact_plan import Rewriting, lots


@dataclass
class Foreseen:
    removed: set[DataFile] = field(default_factory=set)
    files_added: int = 0
    bytes_added: int = 0
    snapshots: int = 0
    """Snapshots that the commits would create."""

    def remove(self, files: Sequence[DataFile]) -> None:
        self.removed.update(files)
        self.snapshots += bool(files)

    def rewrite(self, groups: Sequence[Rewriting]) -> None:
        for group in groups:
            self.removed.update(group.files)
            self.files_added += group.files_after()
            self.bytes_added += group.bytes
        self.snapshots += sum(1 for _ in lots(groups))

    def remaining(self, files: Iterable[DataFile]) -> list[DataFile]:
        return [file for file in files if file not in self.removed] if self.removed else list(files)
