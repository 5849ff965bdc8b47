"""Where Claude Code keeps its transcripts: every `.jsonl` under `<CLAUDE_CONFIG_DIR or ~/.claude>/projects`.

Folders are entered once and files named once, by device and inode, so that links cannot lead in circles. What cannot
be looked at is told as an event; the rest is found all the same.
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
    waiting = [projects]
    while waiting:
        folder = waiting.pop()
        try:
            inside = sorted(folder.iterdir()) if _is_new(folder.stat(), seen) else []
        except OSError as error:
            yield _unreadable(folder, error.strerror)
            continue
        folders: list[Path] = []
        for path in inside:
            yield from _look(path, seen, folders)
        waiting.extend(reversed(folders))


def _look(path: Path, seen: set[Inode], folders: list[Path]) -> Iterator[Found | Event]:
    is_transcript = path.suffix == ".jsonl"
    try:
        about = path.stat()
    except OSError as error:
        if is_transcript:
            yield _unreadable(path, error.strerror)
        return
    if stat.S_ISDIR(about.st_mode):
        folders.append(path)
    elif is_transcript and not stat.S_ISREG(about.st_mode):
        yield _unreadable(path, "not a regular file")
    elif is_transcript and _is_new(about, seen):
        yield Found(path)


def _is_new(about: os.stat_result, seen: set[Inode]) -> bool:
    inode = (about.st_dev, about.st_ino)
    if inode in seen:
        return False
    seen.add(inode)
    return True


def _unreadable(path: Path, reason: str | None) -> Event:
    return Event("unreadable", {"path": _shown(path), "reason": reason or "unknown"})


def _shown(path: Path) -> str:
    return os.fsencode(path).decode("utf-8", "replace")
