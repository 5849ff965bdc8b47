"""Give a recorded session back to its client, or to another one: plan the transcript, and write it.

The plan reads the session's rows from the lake and the spool, and builds the files in memory. A file is created, never
replaced; the file that makes the client see the session comes last. A killed run leaves no part of a file, and the next
run writes the files that are missing.

A session that is carried over to another client gets an id that follows from its source and its last message, so a
second run finds the first one's session, and a session that has grown is carried over as a new one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid5

from hypaware import faults, plugins
from hypaware.clients.client import Client, TranscriptWriter
from hypaware.clients.recorded_session import LOSSES, RecordedSession, Transcript, TranscriptFile, group_messages
from hypaware.errors import HypError, UsageError
from hypaware.home.durable_files import create_atomic, make_dir
from hypaware.index.prices import load_prices
from hypaware.index.session_rows import find_sessions_of_messages, read_session_rows
from hypaware.index.sessions import session_document
from hypaware.model.match_keys import PROMPT_HISTORY
from hypaware.render.facts import resume_command
from hypaware.state.titles import read_titles
from hypaware.text import did_you_mean, escape_cell, format_count

if TYPE_CHECKING:
    from hypaware.index.store import Index
    from hypaware.model.datasets import Row

_FILE_MODE, _FOLDER_MODE = 0o600, 0o700
_NAMESPACE = UUID("6f0c7d5e-3a0b-5c53-9d0e-6f8d1b1f4a27")
# The marker that takes the place of a secret when rows are recorded with redaction.
_MARKER = re.compile(r"\[[a-z][a-z0-9_-]*:[0-9a-f]{12}\]")
_MAX_ANCESTRY = 20
_before_create = faults.crash_point("session_restore.file.before-create", "the file is whole under another name")
_after_create = faults.crash_point(
    "session_restore.file.after-create", "the file is durable, the next one does not exist"
)


@dataclass(frozen=True)
class RestorePlan:
    session_id: str
    """The recorded session."""
    source: str
    """The client that recorded it."""
    target: str
    about: str
    """The target, for people."""
    transcript: Transcript
    is_carried: bool
    existing: Path | None
    """The transcript, if the client has it."""
    resume: str | None
    """The shell command that resumes the session."""
    folder: str | None
    losses: tuple[str, ...]
    """What the transcript does not hold, in words."""

    def as_document(self) -> dict[str, Any]:
        lost = {name: count for name, count in self.transcript.losses.items() if count}
        return {
            "session_id": self.session_id,
            "client": self.source,
            "to": self.target,
            "carried_over": self.is_carried,
            "restored_session_id": self.transcript.session_id,
            "messages": self.transcript.messages,
            "files": [str(file.path) for file in self.transcript.files],
            "existing": None if self.existing is None else str(self.existing),
            "lost": lost,
            "not_carried_over": list(self.losses),
            "resume": self.resume,
        }


def plan_restore(index: Index, number: int, target: str | None, environment: Mapping[str, str]) -> RestorePlan:
    """Return what would be written for the session with this number (`sessions.id`).

    `target` names the client; without it, it is the session's own. Raise HypError if the client cannot be written for,
    or if there is nothing to write.
    """
    prices = load_prices(index.home)
    document = session_document(index, number, prices)
    source = document["client"] or ""
    client, writer = _find_writer(target or source, is_own=target is None)
    rows = read_session_rows(index, number)
    session = RecordedSession(
        session_id=document["session_id"],
        client=source,
        messages=group_messages(rows),
        cwd=document["cwd"],
        title=read_titles(index.home).get(document["session_id"]),
    )
    session = replace(session, messages=group_messages([*_read_ancestors(index, number, rows), *rows]))
    if not session.messages:
        raise HypError(f"session {session.session_id} has no messages to write", kind="empty_session")
    is_carried = source != client.name or not writer.accepts(session.session_id)
    if is_carried:
        last = session.messages[-1].id
        new_id = str(uuid5(_NAMESPACE, f"{client.name}:{source}:{session.session_id}:{last}"))
        transcript = writer.carry_over(session, new_id, environment)
    else:
        transcript = writer.restore(session, environment)
    if not transcript.files or not transcript.files[-1].content or not transcript.messages:
        raise HypError(
            f"session {session.session_id} has no messages of its main thread, so {client.about} cannot continue it",
            kind="no_content",
            repair=f"hyp show {session.session_id}",
        )
    shown = {"client": client.name, "session_id": transcript.session_id, "cwd": session.cwd}
    return RestorePlan(
        session_id=session.session_id,
        source=source,
        target=client.name,
        about=client.about,
        transcript=transcript,
        is_carried=is_carried,
        existing=writer.find(transcript.session_id, environment),
        resume=resume_command(shown, None),
        folder=session.cwd,
        losses=tuple(_describe_losses(session, transcript, is_carried=is_carried)),
    )


def write_transcript(plan: RestorePlan, target: Path | None = None) -> list[Path]:
    """Create the files that do not exist and return their paths; only the conversation, if `target` names a file.

    Raise HypError if the last file exists: a transcript is never replaced.
    """
    files: Sequence[TranscriptFile] = plan.transcript.files
    if target is not None:
        files = [TranscriptFile(target, files[-1].content)]
    written = []
    for file in files:
        if target is None:
            make_dir(file.path.parent, _FOLDER_MODE)
        try:
            create_atomic(file.path, file.content, _FILE_MODE, before_link=_before_create)
        except FileExistsError:
            if file is not files[-1]:
                continue
            raise HypError(f"{file.path} exists; a transcript is never replaced", kind="file_exists") from None
        written.append(file.path)
        _after_create()
    return written


def list_targets() -> dict[str, str]:
    """Return the clients that sessions can be written for, by name."""
    clients = plugins.load_plugins(plugins.CLIENTS, Client)
    return {client.name: client.about for client in clients if client.transcripts is not None}


def _find_writer(name: str, *, is_own: bool) -> tuple[Client, TranscriptWriter]:
    client = plugins.find_plugin(plugins.CLIENTS, name, Client)
    if client is not None and client.transcripts is not None:
        return client, client.transcripts
    targets = list_targets()
    known = " or ".join(f"--to {each}" for each in targets)
    if is_own:
        shown = client.about if client is not None else escape_cell(name) or "an unknown client"
        raise UsageError(
            f"this is a session of {shown}, for which no transcript can be written; use {known}", kind="no_writer"
        )
    raise UsageError(
        f"no transcript can be written for the client {escape_cell(name)}; use {known}."
        f"{did_you_mean(name, list(targets), or_all=False)}",
        kind="no_writer",
    )


def _read_ancestors(index: Index, number: int, rows: Sequence[Row]) -> list[Row]:
    """Return the rows of other sessions that this one continues: a fork begins with messages of its origin."""
    known = {row["message_id"] for row in rows}
    found: dict[str, list[Row]] = {}
    read = {number}
    for _ in range(_MAX_ANCESTRY):
        missing = _list_missing(rows, found, known)
        sessions = [each for each in find_sessions_of_messages(index, missing) if each not in read] if missing else []
        if not sessions:
            break
        for session in sessions:
            read.add(session)
            for row in read_session_rows(index, session):
                found.setdefault(row["message_id"], []).append(row)
    ancestors: set[str] = set()
    pending = _list_missing(rows, {}, known)
    while pending:
        message = pending.pop()
        if message in found and message not in ancestors:
            ancestors.add(message)
            pending |= _list_missing(found[message], {}, known)
    return [row for message, parts in found.items() if message in ancestors for row in parts]


def _list_missing(rows: Sequence[Row], found: Mapping[str, Sequence[Row]], known: set[str]) -> set[str]:
    """Return the messages that come before these and are neither found nor known."""
    messages = [*group_messages(rows), *group_messages([row for each in found.values() for row in each])]
    return {each.previous for each in messages if each.previous} - known - found.keys()


def _describe_losses(session: RecordedSession, transcript: Transcript, *, is_carried: bool) -> list[str]:
    told = []
    for name, words in LOSSES.items():
        if count := transcript.losses.get(name):
            one, several = words.split("|")
            told.append(format_count(count, one, several))
    rows = [row for message in session.messages for row in message.rows]
    if count := sum(_MARKER.search(row.get("content_text") or "") is not None for row in rows):
        told.append(f"the secrets in {format_count(count, 'part')}: markers take their place")
    if all(row.get("provider_type") == PROMPT_HISTORY for row in rows):
        told.append("the responses: only the prompts of this session were recorded")
    if is_carried:
        told.append("system prompt, tools and settings: the client uses its own")
    return told
