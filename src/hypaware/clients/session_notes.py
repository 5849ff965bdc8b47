"""Writes down where a session is at work, as a client's hook tells it.

`<HYP_HOME>/clients/<name>/session-context.jsonl`, one line `{session_id, cwd, git_branch, git_remote, head_sha,
repo_root, at}` for each change (`claude.session_context` reads it). Many hooks run at once, so a lock is held for the
moment of writing; nobody waits for it long, a note that is not written is no harm. At 1 MiB the file is made anew in
one step with the first and the last line of the newest sessions.

It runs in the client's way, at every prompt: it imports little, asks git for a moment at most, and raises nothing that
the command does not swallow.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hypaware import session_context
from hypaware.capture import hypignore
from hypaware.capture.hypignore import Said
from hypaware.capture.privacy_class import PrivacyClass
from hypaware.clients import git
from hypaware.home import Home

MOST_BYTES = 1 << 20
_KEPT_BYTES = MOST_BYTES // 2
_LONGEST = {"session_id": 256, "cwd": 4096}
_GIT_SECONDS = 1.0
_LOCK_SECONDS = 0.5
_TAIL_BYTES = 1 << 16


def path_of(home: Home, client: str) -> Path:
    return session_context.path_of(home.root, client)


def note(home: Home, client: str, told: Any) -> bool:
    """`told` is the hook's JSON. Whether a line was written."""
    session, cwd = (_field(told, name) for name in ("session_id", "cwd"))
    # A home that is not there was removed by its user, and must not come back by a hook.
    if session is None or cwd is None or not home.root.is_dir():
        return False
    said = hypignore.found(cwd) if cwd.startswith("/") and "\0" not in cwd else []
    record = {"session_id": session, **_facts(cwd, said), "at": _now()}
    path = path_of(home, client)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _alone(path.with_suffix(".lock")) as is_ours:
        is_news = is_ours and _append(path, record)
    if said:
        _remember(home, cwd)
    return is_news


def _field(told: Any, name: str) -> str | None:
    value = told.get(name) if isinstance(told, dict) else None
    return value if isinstance(value, str) and value.strip() and len(value) <= _LONGEST[name] else None


def _remember(home: Home, cwd: str) -> None:
    """What the folder says, for when it is gone. After the note: without that the folder is not known at all."""
    # Most folders say nothing, and their hooks need none of this.
    from hypaware.capture.seen_folders import SeenFolders

    SeenFolders(home, remembers=True).said_of(cwd)


def _facts(cwd: str, said: list[Said]) -> dict[str, str | None]:
    if any(each.privacy is PrivacyClass.IGNORE for each in said):
        # The folder must be known, so that nothing of it is recorded; more need not be.
        return {"cwd": cwd}
    begun = time.monotonic()
    now = git.head(cwd)
    late = time.monotonic() - begun > _GIT_SECONDS
    facts = git.NOTHING if late else git.facts(cwd)
    return {
        "cwd": cwd,
        "git_branch": now.branch,
        "git_remote": facts.remote,
        "head_sha": now.sha,
        "repo_root": facts.repo_root,
    }


def _append(path: Path, record: dict[str, Any]) -> bool:
    line = json.dumps(record, ensure_ascii=True).encode() + b"\n"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(fd).st_size
        if _is_known(os.pread(fd, _TAIL_BYTES, max(0, size - _TAIL_BYTES)), record):
            return False
        if size + len(line) > MOST_BYTES:
            _make_anew(path, os.pread(fd, 2 * MOST_BYTES, 0), line)
            return True
        # Half a line, left by a process that was killed, ends here.
        torn = size and os.pread(fd, 1, size - 1) != b"\n"
        os.write(fd, b"\n" + line if torn else line)
        return True
    finally:
        os.close(fd)


def _is_known(tail: bytes, record: dict[str, Any]) -> bool:
    """Whether the session's last line says the same."""
    mark = json.dumps(record["session_id"]).encode()
    for line in reversed(tail.splitlines()):
        if mark in line:
            with suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict) and found.get("session_id") == record["session_id"]:
                    return {**found, "at": None} == {**record, "at": None}
    return False


def _make_anew(path: Path, content: bytes, line: bytes) -> None:
    kept: dict[str, list[bytes]] = {}
    for each in content.splitlines(keepends=True):
        with suppress(ValueError, KeyError, TypeError):
            session = json.loads(each)["session_id"]
            # The first line of a session counts for its rows, the last one is where it is now.
            kept[session] = [*kept.pop(session, [])[:1], each]
    lines = [line]
    size = len(line)
    for session in reversed(kept.values()):
        size += sum(map(len, session))
        if size > _KEPT_BYTES:
            break
        lines[:0] = session
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.writelines(lines)
    temporary.replace(path)


@contextmanager
def _alone(path: Path) -> Iterator[bool]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _LOCK_SECONDS
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    yield False
                    return
                time.sleep(0.002)
            else:
                yield True
                return
    finally:
        os.close(fd)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
