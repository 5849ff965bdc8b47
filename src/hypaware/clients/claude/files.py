"""Find Claude Code's transcripts: every `.jsonl` under `<CLAUDE_CONFIG_DIR or ~/.claude>/projects`.

Folders are entered once and files listed once, by device and inode, so that links cannot form a cycle. Anything that
cannot be inspected is reported as an event, and the search continues.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from hypaware.backfill.provider import Environment, Event, Found

Inode = tuple[int, int]


def config_folder(environment: Environment) -> Path:
    if chosen := environment.get("CLAUDE_CONFIG_DIR"):
        return Path(chosen)
    return Path(environment["HOME"]) / ".claude"


def find(environment: Environment) -> Iterator[Found | Event]:
    projects = config_folder(environment) / "projects"
    if not projects.is_dir():
        yield Event("no_history", {"path": _shown(projects)})
        return
    seen: set[Inode] = set()
    pending = [projects]
    while pending:
        folder = pending.pop()
        try:
            entries = sorted(folder.iterdir()) if _is_new(folder.stat(), seen) else []
        except OSError as error:
            yield _unreadable(folder, error.strerror)
            continue
        folders: list[Path] = []
        for path in entries:
            yield from _look(path, seen, folders)
        pending.extend(reversed(folders))


def _look(path: Path, seen: set[Inode], folders: list[Path]) -> Iterator[Found | Event]:
    is_transcript = path.suffix == ".jsonl"
    try:
        status = path.stat()
    except OSError as error:
        if is_transcript:
            yield _unreadable(path, error.strerror)
        return
    if stat.S_ISDIR(status.st_mode):
        folders.append(path)
    elif is_transcript and not stat.S_ISREG(status.st_mode):
        yield _unreadable(path, "not a regular file")
    elif is_transcript and _is_new(status, seen):
        yield Found(path)


def _is_new(status: os.stat_result, seen: set[Inode]) -> bool:
    inode = (status.st_dev, status.st_ino)
    if inode in seen:
        return False
    seen.add(inode)
    return True


def _unreadable(path: Path, reason: str | None) -> Event:
    return Event("unreadable", {"path": _shown(path), "reason": reason or "unknown"})


def _shown(path: Path) -> str:
    return os.fsencode(path).decode("utf-8", "replace")
