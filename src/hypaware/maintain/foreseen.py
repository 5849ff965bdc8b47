"""What a dry run would have done so far: the next step of it goes on from there, as it would in a real run.

Which files go is certain. How many come instead is, too, as long as those of one rewriting fit into one file; beyond
that it is reckoned from their sizes, as the plan does. How large they are only the writing tells: they count as before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hypaware.lake.metadata import DataFile
from hypaware.maintain.compact_plan import Rewriting, lots


@dataclass
class Foreseen:
    gone: set[DataFile] = field(default_factory=set)
    files_come: int = 0
    bytes_come: int = 0
    snapshots: int = 0
    """That its commits would make."""

    def drop(self, files: Sequence[DataFile]) -> None:
        self.gone.update(files)
        self.snapshots += bool(files)

    def rewrite(self, rewritings: Sequence[Rewriting]) -> None:
        for each in rewritings:
            self.gone.update(each.files)
            self.files_come += each.files_after()
            self.bytes_come += each.bytes
        self.snapshots += sum(1 for _ in lots(rewritings))

    def left_of(self, files: Iterable[DataFile]) -> list[DataFile]:
        return [file for file in files if file not in self.gone] if self.gone else list(files)
