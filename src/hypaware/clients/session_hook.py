"""Record the working folder of a session, from a client's hook.

The client waits for its hook, so the hook is one line of shell (`build_hook_command`) that runs for a few milliseconds.
While a daemon runs, it appends `{session_id, cwd}` to `<HYP_HOME>/clients/<name>/hook-notes.jsonl`, up to 1 MB; the
daemon (`HookNotes`) does the rest within a second, or before it stores the session's next exchange. `run/hook-notes`
says that a daemon reads the notes: `pid boot-id`. Without one, the line passes the same JSON to `hyp hook` in the
background, which also reopens the gateway's address if nothing listens there. It prints nothing and always succeeds.

`session-context.jsonl` next to the notes gets one line `{session_id, cwd, git_branch, git_remote, head_sha, repo_root,
at}` for each change. Many hooks run at once, so writing takes a lock. At 1 MiB the file is replaced atomically by one
with the first and last line of the newest sessions. Of an ignored folder, only its path is recorded.

This module imports little, limits the time for git and the lock (a missing line does no harm), and raises nothing that
the command does not catch.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import threading
import time
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hypaware.clients import git
from hypaware.errors import HypError
from hypaware.home import Home, durable_files, session_context
from hypaware.home.locks import locked
from hypaware.model.privacy_class import PrivacyClass
from hypaware.privacy import hypignore
from hypaware.privacy.hypignore import HypignoreRule

MAX_BYTES = 1 << 20
_KEPT_BYTES = MAX_BYTES // 2
_MAX_LENGTHS = {"session_id": 256, "cwd": 4096}
_GIT_SECONDS = 1.0
_LOCK_SECONDS = 0.5
_TAIL_BYTES = 1 << 16
_NOTES_NAME = "hook-notes.jsonl"
_SETTLED_SECONDS = 5.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# POSIX shell. A quote inside a JSON string is escaped, so `","` ends the value of `cwd`. `exit 0` and `|| :`: another
# exit status could block the user's prompt.
_HOOK_COMMAND = (
    "{ h=@home; x=$(head -c 4000); umask 077; "
    """case $x in *'"session_id":"'*) s=${x#*'"session_id":"'}; s=${s%%'"'*};; *) exit 0;; esac; """
    """case $x in *'"cwd":"'*'","'*) c=${x#*'"cwd":"'}; c=${c%%'","'*};; *) exit 0;; esac; """
    """set -- '{"session_id":"%s","cwd":"%s"}\\n' "$s" "$c"; n=$h/clients/@client/@notes; """
    """i=-; read -r p b <"$h/run/hook-notes"; read -r i <@boot_id; """
    """if [ "$b" = "$i" ] && kill -0 "$p"; then """
    """[ -f "$n" ] && [ $(wc -c <"$n") -gt 1000000 ] || printf "$@" >>"$n"; """
    """else printf "$@" | HYP_HOME=$h @program hook @client >/dev/null & fi; } 2>/dev/null || :"""
)


def find_program() -> str:
    """Return the path of the `hyp` command of this installation."""
    sibling = Path(sys.executable).parent / "hyp"
    return str(sibling) if sibling.is_file() else shutil.which("hyp") or "hyp"


def build_hook_command(client: str, program: str, home: str | None) -> str:
    """Return the line of shell; without `home`, the hook uses the default home of its own environment."""
    values = {
        "home": shlex.quote(home) if home else "${HYP_HOME:-$HOME/.hyp}",
        "program": shlex.quote(program),
        "client": client,
        "notes": _NOTES_NAME,
        "boot_id": str(_BOOT_ID),
    }
    return re.sub(r"@(\w+)", lambda found: values[found[1]], _HOOK_COMMAND)


def notes_path(home: Home, client: str) -> Path:
    return session_context.context_path(home.root, client).with_name(_NOTES_NAME)


class HookNotes:
    """The notes of the clients' hooks, which become lines of the session context. Used by several threads."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._reader = home.run / "hook-notes"
        self._files: dict[Path, tuple[int, int]] = {}
        """The inode of each file, and how much of it was read."""
        self._lock = threading.Lock()

    def announce(self) -> None:
        """Tell the hook that this process reads its notes, until `retract` or until the process ends."""
        boot_id = "-"
        with suppress(OSError):
            boot_id = _BOOT_ID.read_text().strip()
        durable_files.write_atomic(self._reader, f"{os.getpid()} {boot_id}\n".encode(), durable=False)

    def retract(self) -> None:
        self._reader.unlink(missing_ok=True)

    def absorb(self) -> None:
        """Record the new notes. A note that cannot be recorded is tried again the next time."""
        with self._lock:
            for path in (self._home.root / "clients").glob(f"*/{_NOTES_NAME}"):
                self._absorb_file(path)

    def _absorb_file(self, path: Path) -> None:
        with suppress(FileNotFoundError), durable_files.open_regular_file(path) as file:
            status = os.fstat(file.fileno())
            inode, position = self._files.get(path, (0, 0))
            offset = position if inode == status.st_ino and position <= status.st_size else 0
            file.seek(offset)
            content = file.read()
            content = content[: content.rfind(b"\n") + 1]
            for line in dict.fromkeys(content.splitlines()):
                # A damaged memory of folders stops neither the other notes nor this one, which is already written.
                with suppress(ValueError, HypError):
                    record_context(self._home, path.parent.name, json.loads(line))
            self._files[path] = (status.st_ino, offset + len(content))
            # A hook that has opened the file writes to it within this time.
            if time.time() - status.st_mtime > _SETTLED_SECONDS and path.stat().st_size == offset + len(content):
                path.unlink()


def record_context(home: Home, client: str, hook_input: Any) -> bool:
    """Record the hook's JSON input, and return whether a line was written."""
    given = hook_input if isinstance(hook_input, dict) else {}
    valid = {
        name: value
        for name, length in _MAX_LENGTHS.items()
        if isinstance(value := given.get(name), str) and value.strip() and len(value) <= length
    }
    session, cwd = valid.get("session_id"), valid.get("cwd")
    # If the user has removed the home, a hook must not create it again.
    if session is None or cwd is None or not home.root.is_dir():
        return False
    policies = hypignore.find_rules(cwd) if cwd.startswith("/") and "\0" not in cwd else []
    at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    record = {"session_id": session, **_collect_facts(cwd, policies), "at": at}
    path = session_context.context_path(home.root, client)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with ExitStack() as lock:
        written = _acquire(lock, path.with_suffix(".lock")) and _append(path, record)
    if policies:
        # Remember the policy, in case the folder is deleted. Imported here because most folders have no policy.
        from hypaware.privacy.folder_memory import FolderMemory

        FolderMemory(home, remember=True).find_rule(cwd)
    return written


def _collect_facts(cwd: str, policies: list[HypignoreRule]) -> dict[str, str | None]:
    if any(each.privacy_class is PrivacyClass.IGNORE for each in policies):
        # The folder must be known so that it can be ignored; nothing else is recorded.
        return {"cwd": cwd}
    started = time.monotonic()
    head = git.read_head(cwd)
    too_slow = time.monotonic() - started > _GIT_SECONDS
    facts = git.NO_REPOSITORY if too_slow else git.read_repository(cwd)
    return {
        "cwd": cwd,
        "git_branch": head.branch,
        "git_remote": facts.remote,
        "head_sha": head.sha,
        "repo_root": facts.repo_root,
    }


def _append(path: Path, record: dict[str, Any]) -> bool:
    line = json.dumps(record, ensure_ascii=True).encode() + b"\n"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(fd).st_size
        if _is_known(os.pread(fd, _TAIL_BYTES, max(0, size - _TAIL_BYTES)), record):
            return False
        if size + len(line) > MAX_BYTES:
            _rewrite_compacted(path, os.pread(fd, 2 * MAX_BYTES, 0), line)
            return True
        # A killed process may have left an incomplete line; end it first.
        torn = size and os.pread(fd, 1, size - 1) != b"\n"
        os.write(fd, b"\n" + line if torn else line)
        return True
    finally:
        os.close(fd)


def _is_known(tail: bytes, record: dict[str, Any]) -> bool:
    """Return whether the session's last line is equal, except for its time."""
    needle = json.dumps(record["session_id"]).encode()
    for line in reversed(tail.splitlines()):
        if needle in line:
            with suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict) and found.get("session_id") == record["session_id"]:
                    return {**found, "at": None} == {**record, "at": None}
    return False


def _rewrite_compacted(path: Path, content: bytes, line: bytes) -> None:
    kept: dict[str, list[bytes]] = {}
    for each in content.splitlines(keepends=True):
        with suppress(ValueError, KeyError, TypeError):
            session_id = json.loads(each)["session_id"]
            # A session's rows use its first line; its last line is its current folder.
            kept[session_id] = [*kept.pop(session_id, [])[:1], each]
    lines = [line]
    size = len(line)
    for session_lines in reversed(kept.values()):
        size += sum(map(len, session_lines))
        if size > _KEPT_BYTES:
            break
        lines[:0] = session_lines
    durable_files.write_atomic(path, b"".join(lines), durable=False)


def _acquire(lock: ExitStack, path: Path) -> bool:
    """Return whether the lock was acquired in time."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            lock.enter_context(locked(path, wait=False))
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
