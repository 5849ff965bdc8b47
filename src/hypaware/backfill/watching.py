"""Progress of an import, for the one who waits: bytes, files and rows, over all its commits."""

from __future__ import annotations

from hypaware.backfill.lots import Lot
from hypaware.backfill.outcome import Outcome
from hypaware.backfill.pinning import Survey
from hypaware.engine.jobs import JobContext


class Watch:
    def __init__(self, context: JobContext, outcome: Outcome, found: Survey) -> None:
        self._context = context
        self._outcome = outcome
        self._found = found
        self._bytes = self._files = 0

    def tasks_done(self, done: int, files: int, rows: int) -> None:
        """What the tasks of the present commit amount to."""
        self._context.progress(
            f"importing {self._outcome.entry.name}",
            self._bytes + done,
            self._found.bytes,
            unit="bytes",
            files=self._files + files,
            files_total=len(self._found.due),
            rows=self._outcome.rows_written + rows,
        )

    def before(self) -> None:
        self._context.check_cancelled()
        self.tasks_done(0, 0, 0)

    def landed(self, lot: Lot) -> None:
        self._bytes += lot.bytes
        self._files += len(lot.due)
        self.tasks_done(0, 0, 0)
