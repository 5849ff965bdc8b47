"""A time limit for the statements of a connection.

SQLite asks every `_STEPS` instructions of its virtual machine whether to continue, even while a full-text table
reads its pages. A statement that is ended early has returned some rows, which count; `is_over` says that there may be
more. Statements that take fewer instructions are never ended, so a small index is always searched to the end.

Rows are fetched in batches, because a call for each row would take longer than finding it. The first batch has one row
and each has twice as many as the one before, so at most half of the rows are lost if a statement is ended in a batch.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

_STEPS = 1000
_LARGEST_BATCH = 256


class TimeLimit:
    """Ends statements after `seconds`; if there is no result until then, with the first one or after `patience` times
    as long. If the results are no longer wanted, all statements end immediately."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        seconds: float | None,
        patience: float,
        clock: Callable[[], float],
        is_wanted: Callable[[], bool] | None = None,
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._is_wanted = is_wanted
        self._seconds = seconds
        self._end = self._last_end = 0.0
        if seconds is not None:
            begun = clock()
            self._end, self._last_end = begun + seconds, begun + seconds * patience
        self._has_result = self._is_reading = False
        self.is_over = False

    def __enter__(self) -> TimeLimit:
        if self._seconds is not None or self._is_wanted is not None:
            self._connection.set_progress_handler(self._must_end, _STEPS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.set_progress_handler(None, 0)

    def note_result(self) -> None:
        """Note that there is a result, so that the limit counts."""
        self._has_result = True

    def read(self, statement: str, values: Sequence[Any] | Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a statement until the time is over. Other statements are not ended."""
        cursor = self._connection.cursor()
        cursor.row_factory = None
        try:
            self._is_reading = True
            cursor.execute(statement, values)
            size = 1
            while rows := cursor.fetchmany(size):
                self._is_reading = False
                yield from rows
                self._is_reading = True
                size = min(2 * size, _LARGEST_BATCH)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
                raise
            self.is_over = True
        finally:
            self._is_reading = False

    def _must_end(self) -> bool:
        if not self._is_reading:
            return False
        if self._is_wanted is not None and not self._is_wanted():
            return True
        if self._seconds is None:
            return False
        now = self._clock()
        return now >= self._last_end or (now >= self._end and self._has_result)
