"""Sources that are SQLite databases, read while their client writes to them.

A database does not grow at its end: rows change in place, and what was written last is in a side file (`-wal`). So

- its size and its time are those of the database and its side file together;
- it is read in one read-only transaction, which neither blocks the client nor sees half of a change;
- its checkpoint is no offset but a cursor, in the place of the hash of a prefix:

      {"at": newest change, "seen": {key: change, …}, "before": count, "window": [since, until] | null}

A record (for example a message with its parts) is new if it changed after `at`, less a margin: transactions may be
committed in another order than their times. `seen` names the records within the margin that were read. `before` is the
number of records older than that; if there are more of them now, records with old times were added (the clock was set
back, or a session was copied into the database), and everything is read again. The key index drops what the lake has.
`window` is the time window, if it excluded a record: a wider one reads everything again.

A database that was replaced by another file is read from the beginning.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from hypaware.clients.reader import SourceChanged, SourceReader, SourceSnapshot, TimeWindow, get_inode
from hypaware.home.sqlite_readonly import open_readonly

_BLOCK = 1 << 20
_MARGIN_MS = 120_000
_STALE_MS = 600_000


@dataclass(frozen=True)
class ChangedRecord:
    """A record of a database, and when it last changed, in milliseconds."""

    key: str
    changed_at: int


@contextmanager
def open_database(reader: SourceReader) -> Iterator[sqlite3.Connection]:
    """Open the source for one consistent read. Raise OSError if it cannot be read, SourceChanged if it was replaced."""
    source = reader.source
    with _open(source.path if reader.copy is None else reader.copy) as connection:
        if reader.copy is None:
            _check_inode(source)
        yield connection


def read_database(source: SourceSnapshot) -> Iterator[bytes]:
    """Yield the bytes of a consistent copy of a database, with the errors of `open_database`."""
    with _open(source.path) as connection:
        _check_inode(source)
        # In the temporary folder of this process: only as large as the database, and readable by this user alone.
        with tempfile.NamedTemporaryFile(prefix="hyp-database-") as file:
            with closing(sqlite3.connect(file.name)) as copy:
                connection.backup(copy)
                copy.execute("PRAGMA journal_mode=DELETE")
            while block := file.read(_BLOCK):
                yield block


@contextmanager
def _open(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        with open_readonly(path) as connection:
            connection.execute("BEGIN")
            yield connection
    except sqlite3.Error as error:
        raise OSError(errno.EIO, f"{os.strerror(errno.EIO)}: {error}", str(path)) from error


def _check_inode(source: SourceSnapshot) -> None:
    if get_inode(source.path.stat()) != source.inode:
        raise SourceChanged("the database was replaced after it was pinned")


@dataclass
class DatabaseCursor:
    """Decides which records of a database make rows now, and stores the position up to which it was read."""

    reader: SourceReader
    _at: int = 0
    _seen: dict[str, int] = field(default_factory=dict)
    _before: int = 0
    _excluded: bool = False
    _next_seen: dict[str, int] = field(default_factory=dict)

    @classmethod
    def load(cls, reader: SourceReader, records: Sequence[ChangedRecord]) -> DatabaseCursor:
        """Return the cursor after which `records`, all records of the database, are read."""
        at, seen, before, window = _parse(reader.source.prefix_hash)
        older = sum(each.changed_at <= at - _MARGIN_MS for each in records)
        if older > before or (window is not None and not window.covers(reader.source.window)):
            return cls(reader)
        return cls(reader, at, seen, before, window is not None)

    def is_new(self, record: ChangedRecord) -> bool:
        if record.key in self.reader.source.held:
            return True
        return record.changed_at > self._at - _MARGIN_MS and self._seen.get(record.key) != record.changed_at

    def wants(self, record: ChangedRecord, time: str | None, *, is_finished: bool) -> bool:
        """Return whether a record makes rows now. One that is unfinished is held back until it stays unchanged."""
        source = self.reader.source
        if not self.is_new(record):
            self._next_seen[record.key] = record.changed_at
            return False
        is_stale = source.quiet or record.changed_at <= source.mtime_ns // 10**6 - _STALE_MS
        if not (is_finished or is_stale):
            self.reader.held.add(record.key)
            return False
        self._next_seen[record.key] = record.changed_at
        if not source.window.contains(time):
            self._excluded = True
            return False
        return True

    def store(self, records: Sequence[ChangedRecord]) -> None:
        """Store the cursor after all records were passed to `wants`, or are not new."""
        source = self.reader.source
        at = max((each.changed_at for each in records), default=0)
        near = [each for each in records if each.changed_at > at - _MARGIN_MS and each.key not in self.reader.held]
        window = [source.window.since, source.window.until] if self._excluded else None
        cursor = {
            "at": at,
            "seen": {each.key: each.changed_at for each in near},
            "before": sum(each.changed_at <= at - _MARGIN_MS for each in records),
            "window": window,
        }
        self.reader.set_cursor(orjson.dumps(cursor).decode(), is_complete=not self._excluded)


def _parse(cursor: str) -> tuple[int, dict[str, int], int, TimeWindow | None]:
    try:
        found: Any = orjson.loads(cursor)
        window = found["window"]
        return found["at"], found["seen"], found["before"], TimeWindow(*window) if window else None
    except (ValueError, KeyError, TypeError):
        return 0, {}, 0, None


def list_databases(folder: Path, pattern: str) -> list[Path]:
    """Return the databases of a folder, without their side files."""
    return sorted(path for path in folder.glob(pattern) if path.is_file())
