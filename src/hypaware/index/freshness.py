"""Tell at little cost that nothing has changed since the last refresh of the index.

A complete refresh stores the signature of everything that it depends on: the place of the home, and inode, size and
time of its config, its mirror, its catalog and the segments of the spool. While the signature is the same, a reading
command imports nothing that reads them. The signature is taken before the refresh reads anything. It is not stored if
one of the files was written within `_SETTLED_NS` before that: a second write at the same tick of the clock might change
neither its size nor its time.
"""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import suppress

from hypaware.home import Home
from hypaware.home.sqlite_readonly import open_readonly
from hypaware.index import schema
from hypaware.index.schema import DATASET

_SETTLED_NS = 2_000_000_000
_KEY = "signature"


def take_signature(home: Home) -> str | None:
    """Return the signature of the home; None if something has just been written, or if there is no home."""
    if not home.state.is_file() and home.mirror.is_file():
        return None  # a shared lake, to which other machines commit
    try:
        root = home.root.stat()
        found = [str(home.root.resolve()), root.st_dev, root.st_ino, home.state.is_file()]
        newest = 0
        for path in (home.mirror, home.catalog, home.catalog.with_name(f"{home.catalog.name}-wal"), home.config):
            with suppress(FileNotFoundError):
                status = path.stat()
                found += [path.name, status.st_ino, status.st_size, status.st_mtime_ns]
                newest = max(newest, status.st_mtime_ns)
        for folder in ("active", "sealed"):
            with suppress(FileNotFoundError):
                for path in sorted((home.spool / DATASET / folder).iterdir()):
                    status = path.stat()
                    found += [path.name, status.st_ino, status.st_size]
    except OSError:
        return None
    return json.dumps(found) if newest + _SETTLED_NS < time.time_ns() else None


def store_signature(connection: sqlite3.Connection, signature: str | None) -> None:
    """Note that the index is complete for this signature. The caller holds the lock."""
    if schema.read_meta(connection, _KEY) != signature:
        with suppress(sqlite3.OperationalError):  # the disk is full: the next command compares everything
            schema.write_meta(connection, _KEY, signature)


def is_fresh(home: Home) -> tuple[bool, str | None]:
    """Return whether the index is complete, and the warning of its last refresh."""
    with suppress(OSError, sqlite3.Error), open_readonly(home.index) as connection:
        if schema.is_current(connection) and schema.progress_of(connection) is None:
            signature = schema.read_meta(connection, _KEY)
            return bool(signature) and signature == take_signature(home), schema.read_meta(connection, "warning")
    return False, None
