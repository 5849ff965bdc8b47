"""Where sessions are at work, as the hooks of their clients noted it, for what does not say it itself.

Reads `<HYP_HOME>/clients/*/session-context.jsonl` (`clients.session_notes` writes it), each again when it has changed.
For a session's rows its first note counts: that is where it was begun. What cannot be read says nothing.
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
    begun_in: str
    cwd: str
    """Where it was when it was last noted."""
    at: str


class SessionFolders:
    def __init__(self, home: Home) -> None:
        self._root = home.root

    def cwd_of(self, session_id: str) -> str | None:
        return next((found[session_id].begun_in for found in self._notes() if session_id in found), None)

    def around(self, folder: Path) -> list[Noted]:
        """The sessions that were last noted in the folder or in one above it, newest first."""
        places = {str(each) for path in (folder, folder.resolve()) for each in (path, *path.parents)}
        found = [noted for notes in self._notes() for noted in notes.values() if noted.cwd in places]
        return sorted(found, key=lambda noted: noted.at, reverse=True)

    def _notes(self) -> Iterator[Mapping[str, Noted]]:
        for path in session_context.paths(self._root):
            with suppress(OSError):
                about = path.stat()
                yield _read(path, about.st_ino, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=8)
def _read(path: Path, _inode: int, _mtime_ns: int, _size: int) -> Mapping[str, Noted]:
    found: dict[str, Noted] = {}
    for session, told in session_context.notes(path):
        cwd, at = told.get("cwd"), told.get("at")
        if isinstance(cwd, str) and cwd:
            begun_in = found[session].begun_in if session in found else cwd
            found[session] = Noted(session, begun_in, cwd, at if isinstance(at, str) else "")
    return found
