"""Sessions that the user has opted out of recording: `<HYP_HOME>/privacy.json`.

    {"v": 1, "sessions": {"<session id>": {"class": "ignore", "at": "2026-01-31T12:00:00Z"}}}

`hyp session` replaces the file atomically and durably, under a lock; readers reload it when it changes. Session ids are
data and never become part of a path. An unreadable file must not enable recording: changing it is an error, and the
gateway treats every session as ignored until the file is repaired.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from hypaware import durable, faults
from hypaware.capture.privacy_class import PrivacyClass
from hypaware.errors import HypError, UsageError
from hypaware.home import Home

VERSION = 1
_LONGEST_ID = 256

_before_write = faults.point(
    "capture.opt-out.before-write", "a session is status to be ignored or recorded again; nothing is written yet"
)
_after_write = faults.point("capture.opt-out.after-write", "the opt-out of a session is durable")

Sessions = Mapping[str, Mapping[str, str]]


class Unreadable(HypError):
    kind = "privacy_unreadable"


def path_of(home: Home) -> Path:
    return home.root / "privacy.json"


def read(home: Home) -> Sessions:
    """Return a mapping from session id to {class, at}."""
    path = path_of(home)
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _unreadable(path) from error
    sessions = content.get("sessions") if isinstance(content, dict) and content.get("v") == VERSION else None
    if not isinstance(sessions, dict) or not all(isinstance(each, dict) for each in sessions.values()):
        raise _unreadable(path)
    return sessions


def _unreadable(path: Path) -> Unreadable:
    return Unreadable(
        f"{path} is unreadable, so no session is recorded until it is repaired: it lists the sessions to ignore",
        repair=f"mv {path} {path}.broken",
    )


def ignore(home: Home, session_id: str) -> bool:
    """Ignore a session; return whether it was not ignored before."""
    check(session_id)
    at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return _change(
        home,
        lambda current: current if session_id in current else {**current, session_id: {"class": "ignore", "at": at}},
    )


def unignore(home: Home, session_id: str) -> bool:
    check(session_id)
    if not path_of(home).exists():
        return False
    return _change(home, lambda current: {name: each for name, each in current.items() if name != session_id})


def check(session_id: str) -> None:
    if not session_id.strip() or len(session_id) > _LONGEST_ID or not session_id.isprintable():
        raise UsageError(f"{session_id[:80]!r} is not a session id")


def _change(home: Home, change: Callable[[Sessions], Sessions]) -> bool:
    durable.make_dir(home.root)
    with alone(home.root):
        current = read(home)
        wanted = change(current)
        if wanted == current:
            return False
        _before_write()
        durable.write_file(path_of(home), json.dumps({"v": VERSION, "sessions": wanted}, indent=1).encode())
        _after_write()
    return True


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the lock for changes to the privacy files."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


class OptOuts:
    """The current content of the file: checked at each access, read again when it has changed."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._path = path_of(home)
        self._stamp: tuple[int, int, int] | None = None
        self._sessions: Sessions | None = {}

    def class_of(self, session_id: str) -> PrivacyClass | None:
        sessions = self._current()
        if sessions is None:
            return PrivacyClass.IGNORE
        entry = sessions.get(session_id)
        return PrivacyClass.parse(str(entry.get("class", ""))) if entry is not None else None

    def _current(self) -> Sessions | None:
        try:
            status = self._path.stat()
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        except FileNotFoundError:
            stamp = None
        except OSError:
            return None
        if stamp != self._stamp:
            try:
                self._sessions = read(self._home)
            except Unreadable:
                self._sessions = None
            self._stamp = stamp
        return self._sessions
