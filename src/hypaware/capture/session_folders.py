"""Working directories of sessions, as client hooks have noted them, for rows that do not name one.

It reads `<HYP_HOME>/clients/*/session-context.jsonl` and reloads each file when it changes. The first note of a session
counts for its rows, because the session started there. Unreadable files are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from hypaware import session_context
from hypaware.home import Home


@dataclass(frozen=True)
class Noted:
    session_id: str
    started_in: str
    cwd: str
    """The working directory of the last note."""
    at: str


class SessionFolders:
    def __init__(self, home: Home) -> None:
        self._root = home.root

    def working_directory(self, session_id: str) -> str | None:
        return next((found[session_id].started_in for found in self._notes() if session_id in found), None)

    def sessions_around(self, folder: Path) -> list[Noted]:
        """Return the sessions last noted in the folder or in a folder above it, newest first."""
        places = {str(each) for path in (folder, folder.resolve()) for each in (path, *path.parents)}
        found = [session for notes in self._notes() for session in notes.values() if session.cwd in places]
        return sorted(found, key=lambda session: session.at, reverse=True)

    def _notes(self) -> Iterator[Mapping[str, Noted]]:
        for path in session_context.paths(self._root):
            with suppress(OSError):
                status = path.stat()
                yield _read(path, status.st_ino, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=8)
def _read(path: Path, _inode: int, _mtime_ns: int, _size: int) -> Mapping[str, Noted]:
    found: dict[str, Noted] = {}
    for session_id, note in session_context.notes(path):
        cwd, at = note.get("cwd"), note.get("at")
        if isinstance(cwd, str) and cwd:
            started_in = found[session_id].started_in if session_id in found else cwd
            found[session_id] = Noted(session_id, started_in, cwd, at if isinstance(at, str) else "")
    return found
