"""Claude Code's history provider: find its transcripts, and read the exchanges in each.

Transcripts are every `.jsonl` under `<CLAUDE_CONFIG_DIR or ~/.claude>/projects`. Folders are entered once and files
listed once, by device and inode, so that links cannot form a cycle. Anything that cannot be inspected is reported as
an event, and the search continues.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from hypaware.clients.claude.exchange import build_exchange, is_fresh
from hypaware.clients.claude.index import TranscriptIndex
from hypaware.clients.client import Environment, ImportItem, Provenance, ProviderEvent, Source
from hypaware.clients.reader import SourceReader
from hypaware.home.session_context import SessionColumns, session_columns
from hypaware.model.sanitize import to_utc_text

Inode = tuple[int, int]
_TIMESTAMP = re.compile(rb'"timestamp":\s?"([0-9TZ:.+-]{10,40})"')


class ClaudeHistory:
    name = "claude"
    summary = "Claude Code transcripts: every .jsonl under ~/.claude/projects, including subagents"
    datasets = ("ai_gateway_messages",)
    environment = ("CLAUDE_CONFIG_DIR", "HOME", "HYP_HOME")

    def find(self, environment: Environment) -> Iterator[Source | ProviderEvent]:
        projects = config_folder(environment) / "projects"
        if not projects.is_dir():
            yield ProviderEvent("no_history", {"path": _printable(projects)})
            return
        seen: set[Inode] = set()
        pending = [projects]
        while pending:
            folder = pending.pop()
            try:
                entries = sorted(folder.iterdir()) if _is_new(folder.stat(), seen) else []
            except OSError as error:
                yield _unreadable_event(folder, error.strerror)
                continue
            folders: list[Path] = []
            for path in entries:
                yield from _inspect(path, seen, folders)
            pending.extend(reversed(folders))

    def first_time(self, head: bytes) -> str | None:
        times = (to_utc_text(found.decode("ascii")) for found in _TIMESTAMP.findall(head))
        return min((time for time in times if time is not None), default=None)

    def read(self, reader: SourceReader, environment: Environment) -> Iterator[ImportItem | ProviderEvent]:
        source = reader.source
        index = TranscriptIndex(reader)
        records = read_session_records(environment)
        for session in index.sessions.values():
            if not any(is_fresh(entry) for entry in session.entries):
                continue
            exchange = build_exchange(
                session,
                index=index,
                record=records.get(session.id, {}),
                path=source.path,
                mtime_ns=source.mtime_ns,
            )
            provenance = Provenance(client_name="claude", source_path=str(source.path), native_id=session.id)
            yield ImportItem("ai_gateway_messages", "ai_gateway.projected_exchange", exchange, provenance)


def config_folder(environment: Environment) -> Path:
    if chosen := environment.get("CLAUDE_CONFIG_DIR"):
        return Path(chosen)
    return Path(environment["HOME"]) / ".claude"


def _inspect(path: Path, seen: set[Inode], folders: list[Path]) -> Iterator[Source | ProviderEvent]:
    is_transcript = path.suffix == ".jsonl"
    try:
        status = path.stat()
    except OSError as error:
        if is_transcript:
            yield _unreadable_event(path, error.strerror)
        return
    if stat.S_ISDIR(status.st_mode):
        folders.append(path)
    elif is_transcript and not stat.S_ISREG(status.st_mode):
        yield _unreadable_event(path, "not a regular file")
    elif is_transcript and _is_new(status, seen):
        yield Source(path)


def _is_new(status: os.stat_result, seen: set[Inode]) -> bool:
    inode = (status.st_dev, status.st_ino)
    if inode in seen:
        return False
    seen.add(inode)
    return True


def _unreadable_event(path: Path, reason: str | None) -> ProviderEvent:
    return ProviderEvent("unreadable", {"path": _printable(path), "reason": reason or "unknown"})


def _printable(path: Path) -> str:
    return os.fsencode(path).decode("utf-8", "replace")


def read_session_records(environment: Environment) -> SessionColumns:
    """Return what the attached hooks recorded about each session."""
    return session_columns(Path(environment.get("HYP_HOME") or Path(environment["HOME"]) / ".hyp"), "claude")
