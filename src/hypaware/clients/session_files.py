"""Find the session files of a client under its folders, by names alone.

Links are followed; each folder is entered once and each file listed once, by device and inode, so that links cannot
form a cycle. What cannot be inspected is reported as an event, and the search continues.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from hypaware.clients.client import ProviderEvent, Source
from hypaware.clients.reader import SourceSnapshot
from hypaware.model.columns import format_timestamp
from hypaware.model.sanitize import to_utc_text

# Quotes inside a string are escaped, so this matches only keys.
_TIME = re.compile(rb'"(?:timestamp|startTime)"\s*:\s*"([0-9TZ:.+-]{10,40})"')
_SESSION = re.compile(rb'"sessionId"\s*:\s*"([0-9A-Za-z_-]{1,100})"')


def find_files(top: Path, is_session: Callable[[Path], bool]) -> Iterator[Source | ProviderEvent]:
    """Yield the files under a folder that are sessions by their path, in the order of their paths."""
    if not top.is_dir():
        yield ProviderEvent("no_history", {"path": printable(top)})
        return
    pending, seen = [top], set[tuple[int, int]]()
    while pending:
        folder = pending.pop()
        try:
            entries = sorted(folder.iterdir()) if _is_new(folder.stat(), seen) else []
        except OSError as error:
            yield unreadable_event(folder, error)
            continue
        folders = []
        for path in entries:
            wanted = is_session(path)
            try:
                status = path.stat()
            except OSError as error:
                if wanted:
                    yield unreadable_event(path, error)
                continue
            if stat.S_ISDIR(status.st_mode):
                folders.append(path)
            elif wanted and stat.S_ISREG(status.st_mode) and _is_new(status, seen):
                yield Source(path)
        pending.extend(reversed(folders))


def find_first_time(head: bytes) -> str | None:
    """Return the earliest time in the first bytes of a file."""
    times = (to_utc_text(found[1].decode("ascii")) for found in _TIME.finditer(head))
    return min((time for time in times if time is not None), default=None)


def find_session_id(head: bytes) -> str | None:
    """Return the id of the session that the first bytes of a file name."""
    found = _SESSION.search(head)
    return found[1].decode("ascii") if found else None


def file_time(source: SourceSnapshot) -> tuple[str, str] | None:
    """Return the time of messages without one: when the file was last written."""
    try:
        return format_timestamp(datetime.fromtimestamp(source.mtime_ns / 10**9, UTC)), "file_mtime"
    except (OverflowError, OSError, ValueError):
        return None


def unreadable_event(path: Path, error: OSError) -> ProviderEvent:
    return ProviderEvent("unreadable", {"path": printable(path), "reason": os.strerror(error.errno or 0)})


def printable(path: Path) -> str:
    """Return a path as printable text, even if it is not UTF-8."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _is_new(status: os.stat_result, seen: set[tuple[int, int]]) -> bool:
    inode = (status.st_dev, status.st_ino)
    if inode in seen:
        return False
    seen.add(inode)
    return True
