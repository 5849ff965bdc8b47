"""A time limit for the statements of a connection.

SQLite asks every `_STEPS` instructions of its virtual machine whether it should go on, also while a full-text table
reads its pages. A statement that is ended early has returned some rows, which count; `is_over` says that there may be
more. Statements that take fewer instructions are never ended, so a small index is always searched to the end.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

_STEPS = 1000


class TimeLimit:
    """Ends statements after `seconds`; if there is no result until then, with the first one or after `patience` times
    as long."""

    def __init__(
        self, connection: sqlite3.Connection, seconds: float | None, patience: float, clock: Callable[[], float]
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._seconds = seconds
        self._end = self._last_end = 0.0
        if seconds is not None:
            begun = clock()
            self._end, self._last_end = begun + seconds, begun + seconds * patience
        self._has_result = self._is_reading = False
        self.is_over = False

    def __enter__(self) -> TimeLimit:
        if self._seconds is not None:
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
            while (row := cursor.fetchone()) is not None:
                self._is_reading = False
                yield row
                self._is_reading = True
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
                raise
            self.is_over = True
        finally:
            self._is_reading = False

    def _must_end(self) -> bool:
        if not self._is_reading:
            return False
        now = self._clock()
        return now >= self._last_end or (now >= self._end and self._has_result)
