"""Sessions that the user has opted out of recording: `<HYP_HOME>/privacy.json`.

    {"v": 1, "sessions": {"<session id>": {"class": "ignore", "at": "2026-01-31T12:00:00Z"}}}

`hyp session` replaces the file atomically and durably, under a lock; readers reload it when it changes. Session ids are
data and never become part of a path. An unreadable file must not enable recording: changing it is an error, and the
gateway treats every session as ignored until the file is repaired.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, TypeVar

from hypaware import faults
from hypaware.errors import HypError, UsageError
from hypaware.home import Home, durable_files
from hypaware.home.locks import locked

VERSION = 1
_MAX_ID_LENGTH = 256
_before_write = faults.crash_point(
    "privacy.opt-out.before-write", "a session is about to be ignored or recorded again; nothing is written yet"
)
_after_write = faults.crash_point("privacy.opt-out.after-write", "the opt-out of a session is durable")
Sessions = Mapping[str, Mapping[str, str]]
Content = TypeVar("Content")


def ignore_session(home: Home, session_id: str) -> bool:
    """Ignore a session; return whether it was not ignored before."""
    check_session_id(session_id)
    at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return _change_sessions(
        home,
        lambda current: current if session_id in current else {**current, session_id: {"class": "ignore", "at": at}},
    )


def unignore_session(home: Home, session_id: str) -> bool:
    check_session_id(session_id)
    if not ignored_sessions_path(home).exists():
        return False
    return _change_sessions(home, lambda current: {name: each for name, each in current.items() if name != session_id})


def check_session_id(session_id: str) -> None:
    if not session_id.strip() or len(session_id) > _MAX_ID_LENGTH or not session_id.isprintable():
        raise UsageError(f"{session_id[:80]!r} is not a session id")


def read_ignored_sessions(home: Home) -> Sessions:
    """Return a mapping from session id to {class, at}."""
    path = ignored_sessions_path(home)
    try:
        content = json.loads(path.read_bytes())
        sessions: Sessions = content["sessions"]
        if content["v"] != VERSION or not all(isinstance(each, dict) for each in sessions.values()):
            raise ValueError
        return sessions
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PrivacyFileUnreadable(
            f"{path} is unreadable, so no session is recorded until it is repaired: it lists the sessions to ignore",
            repair=f"mv {path} {path}.broken",
        ) from error


def ignored_sessions_path(home: Home) -> Path:
    return home.root / "privacy.json"


def _change_sessions(home: Home, change: Callable[[Sessions], Sessions]) -> bool:
    durable_files.make_dir(home.root)
    with locked(home.root):
        current = read_ignored_sessions(home)
        wanted = change(current)
        if wanted == current:
            return False
        _before_write()
        durable_files.write_atomic(
            ignored_sessions_path(home), json.dumps({"v": VERSION, "sessions": wanted}, indent=1).encode()
        )
        _after_write()
    return True


class PrivacyFileUnreadable(HypError):
    kind = "privacy_unreadable"


class ReloadedFile(Generic[Content]):
    """The content of a privacy file: checked at each access, read again when the file has changed."""

    def __init__(self, path: Path, read: Callable[[], Content]) -> None:
        self._path, self._read = path, read
        self._stamp: object = self
        self._content: Content | None = None

    def get(self) -> Content | None:
        """Return the content; None if the file is unreadable."""
        try:
            status = self._path.stat()
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        except FileNotFoundError:
            stamp = None
        except OSError:
            return None
        if stamp != self._stamp:
            try:
                self._content = self._read()
            except PrivacyFileUnreadable:
                self._content = None
            self._stamp = stamp
        return self._content
