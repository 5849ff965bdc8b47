"""The report of a reprojection: the document of `hyp reproject --json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class Flushed(Protocol):
    """Row counts of a flush."""

    @property
    def rows_written(self) -> int: ...

    @property
    def rows_rejected(self) -> int: ...

    @property
    def rows_purged(self) -> int: ...


@dataclass
class Outcome:
    dry_run: bool
    exchanges: int = 0
    """Exchanges of this gateway in the window."""
    sessions: set[str] = field(default_factory=set)
    rows_projected: int = 0
    rows_written: int = 0
    rows_duplicate: int = 0
    """Rows that the lake has under the same id or its native id."""
    rows_purged: int = 0
    """Rows that belong to a purge."""
    rows_rejected: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    """Exchanges, or parts of them, that gave no rows, by reason."""

    def add_flush(self, added: int, reports: Sequence[Flushed]) -> None:
        """Add the counts of the flushes. They may include rows of other producers, so each count is capped."""
        rejected = min(added, sum(report.rows_rejected for report in reports))
        purged = min(added - rejected, sum(report.rows_purged for report in reports))
        written = min(added - rejected - purged, sum(report.rows_written for report in reports))
        self.rows_rejected += rejected
        self.rows_purged += purged
        self.rows_written += written
        self.rows_duplicate += added - rejected - purged - written

    def as_json(self) -> dict[str, Any]:
        return {
            "dry_run": self.dry_run,
            "exchanges": self.exchanges,
            "sessions": len(self.sessions),
            "rows_projected": self.rows_projected,
            "rows_written": self.rows_written,
            "rows_duplicate": self.rows_duplicate,
            "rows_purged": self.rows_purged,
            "rows_rejected": self.rows_rejected,
            "skipped": dict(sorted(self.skipped.items())),
        }
