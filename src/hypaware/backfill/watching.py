"""Report the progress of an import: bytes, files and rows over all its commits."""

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
        """Report the progress of the tasks of the current commit."""
        self._context.progress(
            f"importing {self._outcome.entry.name}",
            self._bytes + done,
            self._found.bytes,
            unit="bytes",
            files=self._files + files,
            files_total=len(self._found.due),
            rows=self._outcome.rows_written + rows,
        )

    def before_batch(self) -> None:
        self._context.check_cancelled()
        self.tasks_done(0, 0, 0)

    def after_batch(self, batch: Lot) -> None:
        self._bytes += batch.bytes
        self._files += len(batch.due)
        self.tasks_done(0, 0, 0)
