"""Claude Code's prompt history: the prompts of sessions whose transcripts are gone.

Claude Code deletes transcripts after a while, but keeps every prompt that was typed at its terminal, in
`<CLAUDE_CONFIG_DIR or ~/.claude>/history.jsonl`:

    {display, pastedContents: {number: {id, type, content | contentHash, …}}, timestamp, project, sessionId}

A prompt is rescued if its session has no transcript on this disk, none was imported before, and the session was not
recorded live: neither the hooks nor the index know it. Its row has the role `user` and
`attributes.claude.source = "prompt_history"`. If the transcript comes back, for example from a backup, the native row
of the prompt settles the rescued one: they match as a live row and a native row do, by session, text and time
(`model.match_keys`).

Prompts are counted and not rescued if they are commands (`/…`, `!…`), which transcripts hold in another form, if they
name no session (old versions), or if they are covered by a transcript. A prompt of the last minutes is held back: the
transcript of a session that has just begun may not exist yet.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Container, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hypaware.clients import git
from hypaware.clients.client import Environment, ImportItem, Provenance
from hypaware.clients.reader import SourceReader, text_or_none
from hypaware.errors import HypError
from hypaware.home import Home, machine_facts
from hypaware.home.session_context import session_columns
from hypaware.home.sqlite_readonly import has_table, open_readonly
from hypaware.model.columns import format_timestamp
from hypaware.model.expand import Exchange, Message
from hypaware.model.match_keys import PROMPT_HISTORY
from hypaware.state.location import has_state, open_store

FILE_NAME = "history.jsonl"
_COMMANDS = ("/", "!")
_PASTED = re.compile(r"\[Pasted text #(\d+)(?: \+\d+ lines)?\]")
_RECENT_NS = 10 * 60 * 10**9
_MARK = {"claude": {"source": PROMPT_HISTORY}}


@dataclass
class _Session:
    """The prompts of one session, in the order of the file, and which of them make rows now."""

    id: str
    project: str | None
    prompts: list[tuple[str, str | None, bool]] = field(default_factory=list)
    """(text, time, fresh)"""


def read_prompts(reader: SourceReader, environment: Environment, projects: Path) -> Iterator[ImportItem]:
    """Yield the prompts of sessions that are recorded nowhere else."""
    root = Path(environment.get("HYP_HOME") or Path(environment["HOME"]) / ".hyp")
    recorded: Container[str]
    if machine_facts.is_remote():
        named = {text_or_none(line.value.get("sessionId")) or "" for line in reader.lines()}
        recorded = machine_facts.look_up(_find_recorded, root, projects, tuple(sorted(named)), default=frozenset())
    else:
        recorded = _RecordedSessions(root, projects)
    sessions: dict[str, _Session] = {}
    for line in reader.lines():
        value, key = line.value, str(line.offset)
        new = reader.is_new(line.offset, key)
        session, text = text_or_none(value.get("sessionId")), _get_text(value)
        reason = "no_session" if session is None else "no_prompt" if text is None else None
        if reason is None and str(text).startswith(_COMMANDS):
            reason = "command"
        if reason is None and str(session) in recorded:
            reason = "in_transcript"
        if reason is not None:
            if new:
                reader.skipped[reason] += 1
            continue
        assert session is not None
        assert text is not None
        if new and _is_recent(value, reader):
            reader.held.add(key)
        found = sessions.setdefault(session, _Session(session, text_or_none(value.get("project"))))
        time = _get_time(value)
        fresh = reader.wants(line, time, new=new)
        found.prompts.append((text, time, fresh and key not in reader.held))
    for each in sessions.values():
        if any(fresh for _, _, fresh in each.prompts):
            provenance = Provenance("claude", str(reader.source.path), each.id)
            exchange = _build_exchange(each)
            yield ImportItem("ai_gateway_messages", "ai_gateway.projected_exchange", exchange, provenance)


def _build_exchange(session: _Session) -> Exchange:
    cwd = session.project if session.project and session.project.startswith("/") else None
    repository = git.find_repository(cwd) if cwd else git.NO_REPOSITORY
    return Exchange(
        provider="anthropic",
        session_id=session.id,
        client_name="claude",
        started_at=next((time for _, time, _ in session.prompts if time), None),
        columns={
            "conversation_source": "claude",
            "cwd": cwd,
            "git_remote": repository.remote,
            "repo_root": repository.repo_root,
            "provider_type": PROMPT_HISTORY,
        },
        messages=(
            Message(role="user", content=text, created_at=time, fresh=fresh, attributes=_MARK)
            for text, time, fresh in session.prompts
        ),
    )


class _RecordedSessions:
    """The sessions that need no rescue: with a transcript on this disk, imported before, or with rows of their own."""

    def __init__(self, root: Path, projects: Path) -> None:
        self._home = Home(root)
        self._known = {*_list_transcripts(projects), *self._imported(), *session_columns(self._home.root, "claude")}
        self._others: dict[str, bool] = {}

    def __contains__(self, session: object) -> bool:
        if session in self._known:
            return True
        assert isinstance(session, str)
        if session not in self._others:
            self._others[session] = _is_answered(self._home, session)
        return self._others[session]

    def _imported(self) -> Iterator[str]:
        """Yield the names of the transcripts that were ever imported, whether they still exist or not."""
        if not has_state(self._home):
            return
        with suppress(HypError, OSError, sqlite3.Error):
            with open_store(self._home, read_only=True).reading() as connection:
                sql = "SELECT path FROM sources WHERE provider = 'claude'"
                paths = connection.values(sql) if connection.has_table("sources") else []
            yield from (Path(path).stem for path in paths)


def _find_recorded(root: Path, projects: Path, sessions: tuple[str, ...]) -> frozenset[str]:
    recorded = _RecordedSessions(root, projects)
    return frozenset(session for session in sessions if session in recorded)


def _list_transcripts(projects: Path) -> Iterator[str]:
    with suppress(OSError), os.scandir(projects) as folders:
        for folder in folders:
            with suppress(OSError), os.scandir(folder.path) as files:
                yield from (entry.name.removesuffix(".jsonl") for entry in files if entry.name.endswith(".jsonl"))


def _get_text(value: dict[str, Any]) -> str | None:
    """Return the prompt, with pasted text in place of its marks. Some of it may be gone."""
    text, pasted = text_or_none(value.get("display")), value.get("pastedContents")
    if text is None or not isinstance(pasted, dict):
        return text

    def expand(mark: re.Match[str]) -> str:
        found = pasted.get(mark[1])
        content = found.get("content") if isinstance(found, dict) else None
        return content if isinstance(content, str) else mark[0]

    return _PASTED.sub(expand, text)


def _get_time(value: dict[str, Any]) -> str | None:
    stamp = value.get("timestamp")
    if not isinstance(stamp, int | float) or isinstance(stamp, bool):
        return None
    with suppress(OverflowError, OSError, ValueError):
        return format_timestamp(datetime.fromtimestamp(stamp / 1000, UTC))
    return None


def _is_recent(value: dict[str, Any], reader: SourceReader) -> bool:
    stamp, source = value.get("timestamp"), reader.source
    if source.quiet or not isinstance(stamp, int | float):
        return False
    return stamp * 10**6 > source.mtime_ns - _RECENT_NS


def _is_answered(home: Home, session_id: str) -> bool:
    """Return whether the index has messages of the session other than prompts. False if it is missing or damaged."""
    if not home.index.is_file():
        return False
    try:
        with open_readonly(home.index) as database:
            if not has_table(database, "sessions"):
                return False
            query = "SELECT 1 FROM sessions WHERE session_id = ? AND messages > turns"
            return database.execute(query, (session_id,)).fetchone() is not None
    except (OSError, sqlite3.Error):
        return False
