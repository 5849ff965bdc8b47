"""Codex's history provider: one item per rollout file, which holds one thread.

Rollouts are `<CODEX_HOME or ~/.codex>/sessions/**/rollout-*.{jsonl,json}`. Links are followed; each folder and file
is visited once. Known locations with history in unsupported formats are only checked for existence and reported as
events.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from hypaware.clients.client import Environment, ImportItem, ProviderEvent, Source
from hypaware.clients.codex.exchange import build_document_item, build_thread_item
from hypaware.clients.codex.rollout import read_document, read_thread
from hypaware.clients.reader import SourceReader
from hypaware.model.sanitize import to_utc_text

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
# Quotes inside a string are escaped, so this matches only keys.
_TIMESTAMP = re.compile(rb'"timestamp"\s*:\s*"([0-9TZ:.+-]{16,40})"')


def printable(path: Path) -> str:
    """Return a path as printable text, even if it is not UTF-8."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _each_once(paths: list[Path]) -> Iterator[Source | ProviderEvent]:
    seen: set[tuple[int, int]] = set()
    for path in sorted(paths):
        try:
            status = path.stat()
        except OSError as error:
            yield _unreadable_event(path, error)
            continue
        if (inode := (status.st_dev, status.st_ino)) not in seen:
            seen.add(inode)
            yield Source(path)


def _walk(top: Path) -> Iterator[Path | ProviderEvent]:
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
            yield _unreadable_event(folder, error)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        # A broken or cyclic link.
        return False


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _unreadable_event(path: Path, error: OSError) -> ProviderEvent:
    return ProviderEvent("unreadable", {"path": printable(path), "reason": os.strerror(error.errno or 0)})


def _other_files(codex_home: Path) -> Iterator[ProviderEvent]:
    """Yield events for other files in Codex's folder: prompts without responses, logs, archived rollouts."""
    for name in ("history.jsonl", "history.json", "log"):
        if _exists(codex_home / name):
            yield ProviderEvent("diagnostic_only", {"path": printable(codex_home / name)})
    if _exists(codex_home / "archived_sessions"):
        yield ProviderEvent(
            "unsupported_location", {"kind": "archived", "path": printable(codex_home / "archived_sessions")}
        )


def _apps_and_browsers(home: Path) -> Iterator[ProviderEvent]:
    browsers = tuple(f"{browser}/{_CHROMIUM_STORAGE}" for browser in _CHROMIUMS)
    for kind, places in (("app", _APPS), ("browser", browsers)):
        for place in places:
            if _exists(home / place):
                yield ProviderEvent("unsupported_location", {"kind": kind, "path": printable(home / place)})


class CodexHistory:
    name = "codex"
    summary = "Codex sessions: ~/.codex/sessions (or CODEX_HOME)"
    datasets = ("ai_gateway_messages",)
    environment = ("CODEX_HOME", "HOME")

    def find(self, environment: Environment) -> Iterator[Source | ProviderEvent]:
        home = Path(environment.get("HOME") or "~").expanduser()
        codex_home = Path(environment.get("CODEX_HOME") or home / ".codex")
        yield from _other_files(codex_home)
        yield from _apps_and_browsers(home)
        sessions = codex_home / "sessions"
        paths: list[Path] = []
        compressed = 0
        for found in _walk(sessions):
            if isinstance(found, ProviderEvent):
                yield found
            elif found.name.endswith(_ROLLOUTS):
                paths.append(found)
            else:
                compressed += 1
        if compressed:
            yield ProviderEvent(
                "unsupported_location", {"kind": "compressed", "path": printable(sessions), "files": compressed}
            )
        if not paths:
            yield ProviderEvent("no_history", {"path": printable(sessions)})
        yield from _each_once(paths)

    def first_time(self, head: bytes) -> str | None:
        times = (to_utc_text(found[1].decode("ascii")) for found in _TIMESTAMP.finditer(head))
        return min((time for time in times if time is not None), default=None)

    def read(self, reader: SourceReader, environment: Environment) -> Iterator[ImportItem | ProviderEvent]:
        document = read_document(reader)
        if document is not None:
            yield build_document_item(reader, document)
        else:
            yield build_thread_item(reader, read_thread(reader))
