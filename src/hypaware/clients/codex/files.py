"""Find Codex's history: `<CODEX_HOME or ~/.codex>/sessions/**/rollout-*.{jsonl,json}`.

Links are followed; each folder and file is visited once. Known locations with history in unsupported formats are only
checked for existence and reported as events.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from hypaware.backfill.provider import Environment, Event, Found

_ROLLOUTS = (".jsonl", ".json")
_COMPRESSED = (".jsonl.zst", ".jsonl.gz")
# Folders of the app under the user's home, on Linux and macOS.
_APPS = (
    *(".config/ChatGPT", ".config/Codex", ".config/com.openai.chat", ".config/com.openai.codex"),
    *(".local/share/ChatGPT", ".local/share/Codex", ".local/share/com.openai.chat", ".local/share/com.openai.codex"),
    *("Library/Application Support/ChatGPT", "Library/Application Support/Codex"),
    *("Library/Application Support/com.openai.chat", "Library/Application Support/com.openai.codex"),
    *("Library/Containers/com.openai.chat", "Library/Containers/com.openai.codex"),
)
_CHROMIUMS = (
    *(".config/google-chrome", ".config/chromium", ".config/microsoft-edge", ".config/BraveSoftware/Brave-Browser"),
    *("Library/Application Support/Google/Chrome", "Library/Application Support/Chromium"),
    *("Library/Application Support/Microsoft Edge", "Library/Application Support/BraveSoftware/Brave-Browser"),
)
_CHROMIUM_STORAGE = "Default/IndexedDB/https_chatgpt.com_0.indexeddb.leveldb"


def find(environment: Environment) -> Iterator[Found | Event]:
    home = Path(environment.get("HOME") or "~").expanduser()
    codex_home = Path(environment.get("CODEX_HOME") or home / ".codex")
    yield from _beside(codex_home)
    yield from _apps_and_browsers(home)
    sessions = codex_home / "sessions"
    paths: list[Path] = []
    compressed = 0
    for found in _walk(sessions):
        if isinstance(found, Event):
            yield found
        elif found.name.endswith(_ROLLOUTS):
            paths.append(found)
        else:
            compressed += 1
    if compressed:
        yield Event("unsupported_location", {"kind": "compressed", "path": shown(sessions), "files": compressed})
    if not paths:
        yield Event("no_history", {"path": shown(sessions)})
    yield from _each_once(paths)


def shown(path: Path) -> str:
    """Return a path as printable text, even if it is not UTF-8."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _each_once(paths: list[Path]) -> Iterator[Found | Event]:
    seen: set[tuple[int, int]] = set()
    for path in sorted(paths):
        try:
            status = path.stat()
        except OSError as error:
            yield _unreadable(path, error)
            continue
        if (inode := (status.st_dev, status.st_ino)) not in seen:
            seen.add(inode)
            yield Found(path)


def _walk(top: Path) -> Iterator[Path | Event]:
    """Yield the paths of rollout files, and events for unreadable folders."""
    folders, seen = [top], set[tuple[int, int]]()
    while folders:
        folder = folders.pop()
        try:
            status = folder.stat()
            if (inode := (status.st_dev, status.st_ino)) in seen:
                continue
            seen.add(inode)
            with os.scandir(folder) as entries:
                for entry in entries:
                    if _is_folder(entry):
                        folders.append(folder / entry.name)
                    elif entry.name.startswith("rollout-") and entry.name.endswith(_ROLLOUTS + _COMPRESSED):
                        yield folder / entry.name
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            yield _unreadable(folder, error)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        # A broken or cyclic link.
        return False


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _unreadable(path: Path, error: OSError) -> Event:
    return Event("unreadable", {"path": shown(path), "reason": os.strerror(error.errno or 0)})


def _beside(codex_home: Path) -> Iterator[Event]:
    """Yield events for other files in Codex's folder: prompts without responses, logs, archived rollouts."""
    for name in ("history.jsonl", "history.json", "log"):
        if _is_there(codex_home / name):
            yield Event("diagnostic_only", {"path": shown(codex_home / name)})
    if _is_there(codex_home / "archived_sessions"):
        yield Event("unsupported_location", {"kind": "archived", "path": shown(codex_home / "archived_sessions")})


def _apps_and_browsers(home: Path) -> Iterator[Event]:
    browsers = tuple(f"{browser}/{_CHROMIUM_STORAGE}" for browser in _CHROMIUMS)
    for kind, places in (("app", _APPS), ("browser", browsers)):
        for place in places:
            if _is_there(home / place):
                yield Event("unsupported_location", {"kind": kind, "path": shown(home / place)})
