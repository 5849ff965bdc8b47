"""Sessions that their user does not want to be recorded: `<HYP_HOME>/privacy.json`.

    {"v": 1, "sessions": {"<session id>": {"class": "ignore", "at": "2026-01-31T12:00:00Z"}}}

Replaced in one durable step, under a lock, by `hyp session`; read again by whoever looks when it has changed. Session
ids are data: no path is ever made of one. A file that cannot be read must not turn silence into recording: it is an
error for who changes it, and whoever records takes every session for ignored until it is mended.
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
    "capture.opt-out.before-write", "a session was ignored or not any more, nobody knows it yet"
)
_after_write = faults.point("capture.opt-out.after-write", "the opt-out of a session is durable")

Sessions = Mapping[str, Mapping[str, str]]


class Unreadable(HypError):
    kind = "privacy_unreadable"


def path_of(home: Home) -> Path:
    return home.root / "privacy.json"


def read(home: Home) -> Sessions:
    """Session id → {class, at}."""
    path = path_of(home)
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _unreadable(path) from error
    sessions = found.get("sessions") if isinstance(found, dict) and found.get("v") == VERSION else None
    if not isinstance(sessions, dict) or not all(isinstance(each, dict) for each in sessions.values()):
        raise _unreadable(path)
    return sessions


def _unreadable(path: Path) -> Unreadable:
    return Unreadable(
        f"{path} cannot be read, so no session is recorded until it is mended: it says which ones must not be",
        repair=f"mv {path} {path}.broken",
    )


def ignore(home: Home, session_id: str) -> bool:
    """Whether that is news."""
    check(session_id)
    at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return _change(home, lambda now: now if session_id in now else {**now, session_id: {"class": "ignore", "at": at}})


def unignore(home: Home, session_id: str) -> bool:
    check(session_id)
    if not path_of(home).exists():
        return False
    return _change(home, lambda now: {name: each for name, each in now.items() if name != session_id})


def check(session_id: str) -> None:
    if not session_id.strip() or len(session_id) > _LONGEST_ID or not session_id.isprintable():
        raise UsageError(f"{session_id[:80]!r} is no session id")


def _change(home: Home, change: Callable[[Sessions], Sessions]) -> bool:
    durable.make_dir(home.root)
    with alone(home.root):
        now = read(home)
        wanted = change(now)
        if wanted == now:
            return False
        _before_write()
        durable.write_file(path_of(home), json.dumps({"v": VERSION, "sessions": wanted}, indent=1).encode())
        _after_write()
    return True


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """For who changes what privacy goes by."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


class OptOuts:
    """The file, as it is now: looked at each time, read when it has changed."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._path = path_of(home)
        self._seen: tuple[int, int, int] | None = None
        self._sessions: Sessions | None = {}

    def class_of(self, session_id: str) -> PrivacyClass | None:
        sessions = self._current()
        if sessions is None:
            return PrivacyClass.IGNORE
        found = sessions.get(session_id)
        return PrivacyClass.named(str(found.get("class", ""))) if found is not None else None

    def _current(self) -> Sessions | None:
        try:
            about = self._path.stat()
            seen = (about.st_ino, about.st_mtime_ns, about.st_size)
        except FileNotFoundError:
            seen = None
        except OSError:
            return None
        if seen != self._seen:
            try:
                self._sessions = read(self._home)
            except Unreadable:
                self._sessions = None
            self._seen = seen
        return self._sessions
