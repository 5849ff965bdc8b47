"""The session context that clients' hooks record: `<HYP_HOME>/clients/<name>/session-context.jsonl`.

Each line is `{session_id, cwd, git_branch, git_remote, head_sha, repo_root, at}`. `clients.session_hook` writes the
file and limits its size. The first line of a session provides the columns of its rows; the last one says where it is
now.
Invalid lines and unreadable files are skipped. Files are cached until they change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from hypaware.home import Home, machine_facts
from hypaware.home.durable_files import open_regular_file
from hypaware.text import strip_url_credentials

CONTEXT_COLUMNS = ("cwd", "git_branch", "git_remote", "head_sha", "repo_root")
_FILE_NAME = "session-context.jsonl"
_MAX_BYTES = 4 << 20

SessionColumns = Mapping[str, Mapping[str, str]]
"""Session id → columns, from the session's first line."""


@dataclass(frozen=True)
class SessionFolder:
    session_id: str
    started_in: str
    cwd: str
    """The working directory of the last line."""
    at: str


def context_path(root: Path, client: str) -> Path:
    """Return the path of a client's file below the home folder `root`."""
    return root / "clients" / client / _FILE_NAME


def session_columns(root: Path, client: str) -> SessionColumns:
    return machine_facts.look_up(_read_columns, root, client, default={})


def _read_columns(root: Path, client: str) -> SessionColumns:
    return _read_file(context_path(root, client)).columns


def all_session_columns(root: Path) -> SessionColumns:
    """Return the columns of the sessions of all clients."""
    found: dict[str, Mapping[str, str]] = {}
    for file in _read_files(root):
        for session_id, columns in file.columns.items():
            found.setdefault(session_id, columns)
    return found


def find_session_columns(root: Path, session_id: str) -> Mapping[str, str]:
    """Return the columns of one session, whichever client it is of."""
    found = (file.columns[session_id] for file in _read_files(root) if session_id in file.columns)
    return next(found, {})


def started_folders(home: Home) -> Mapping[str, str]:
    """Return session → the folder in which it was started."""
    found: dict[str, str] = {}
    for file in _read_files(home.root):
        for session_id, folder in file.folders.items():
            found.setdefault(session_id, folder.started_in)
    return found


def working_directory(home: Home, session_id: str) -> str | None:
    """Return the folder in which a session was started."""
    found = (file.folders[session_id].started_in for file in _read_files(home.root) if session_id in file.folders)
    return next(found, None)


def sessions_around(home: Home, folder: Path) -> list[SessionFolder]:
    """Return the sessions last seen in the folder or in a folder above it, newest first."""
    places = {str(each) for path in (folder, folder.resolve()) for each in (path, *path.parents)}
    sessions = (session for file in _read_files(home.root) for session in file.folders.values())
    return sorted((each for each in sessions if each.cwd in places), key=lambda each: each.at, reverse=True)


@dataclass
class _ContextFile:
    columns: dict[str, dict[str, str]] = field(default_factory=dict)
    folders: dict[str, SessionFolder] = field(default_factory=dict)

    def add(self, session_id: str, note: Mapping[str, Any]) -> None:
        if session_id not in self.columns:
            found = {name: text for name in CONTEXT_COLUMNS if isinstance(text := note.get(name), str) and text}
            if "git_remote" in found:
                found["git_remote"] = strip_url_credentials(found["git_remote"])
            self.columns[session_id] = found
        cwd, at = note.get("cwd"), note.get("at")
        if isinstance(cwd, str) and cwd:
            started_in = self.folders[session_id].started_in if session_id in self.folders else cwd
            self.folders[session_id] = SessionFolder(session_id, started_in, cwd, at if isinstance(at, str) else "")


def _read_files(root: Path) -> Iterator[_ContextFile]:
    return map(_read_file, sorted((root / "clients").glob(f"*/{_FILE_NAME}")))


def _read_file(path: Path) -> _ContextFile:
    try:
        status = path.stat()
        return _parse_file(path, status.st_ino, status.st_mtime_ns, status.st_size)
    except OSError:
        return _ContextFile()


@lru_cache(maxsize=8)
def _parse_file(path: Path, _inode: int, _mtime_ns: int, _size: int) -> _ContextFile:
    with open_regular_file(path) as opened:
        lines = opened.read(_MAX_BYTES).splitlines()
    file = _ContextFile()
    for line in lines:
        with suppress(orjson.JSONDecodeError):
            note = orjson.loads(line)
            if isinstance(note, dict) and isinstance(session_id := note.get("session_id"), str):
                file.add(session_id, note)
    return file
