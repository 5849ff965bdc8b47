"""Counters of rows: how many a flush, an import or a reprojection wrote, and why it did not write the others."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass
class RowCounts:
    written: int = 0
    duplicate: int = 0
    """Rows that the lake has already."""
    rejected: int = 0
    """Rows that cannot be stored."""
    settled: int = 0
    """Native rows that settle a live row of the lake."""
    purged: int = 0
    """Rows that belong to a purge."""

    @property
    def total(self) -> int:
        return self.written + self.duplicate + self.rejected + self.settled + self.purged

    def add(self, other: RowCounts) -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def as_json(self, *names: str) -> dict[str, int]:
        """Return the named counters, or all of them, under their keys in reports."""
        return {f"rows_{name}": getattr(self, name) for name in names or [each.name for each in fields(self)]}
