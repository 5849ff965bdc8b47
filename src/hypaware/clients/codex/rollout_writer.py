"""Write a recorded session as rollout files that `codex resume` accepts.

A thread of the client itself keeps its ids: an item that had an id gets it again, and one that had none gets one only
if its content would not give the recorded id, because something was removed from it when it was recorded. So an import
of the rollout gives rows with the ids that the lake has. Reasoning is shown and not sent: its encrypted content is
never recorded, and the provider does not accept it without.

A session of another client becomes a new thread, whose `originator` is `hyp-restore-session`; its first line names the
session that it comes from, under `restored_from`.

The client resumes a session only if its config has the session's model provider. If it has not, the provider of the
config takes its place.

Items are what the client sends to the model, events are what it shows.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson

from hypaware.clients.client import Environment
from hypaware.clients.codex import history
from hypaware.clients.codex.rollout import convert_item, get_item_role
from hypaware.clients.recorded_session import (
    IMAGE_NOTE,
    CarriedPart,
    Losses,
    RecordedMessage,
    RecordedSession,
    Transcript,
    TranscriptFile,
    is_uuid,
    list_carried_parts,
    list_output_texts,
    parse_json,
)
from hypaware.index.prompts import is_client_note
from hypaware.model import canonical
from hypaware.model.datasets import Row
from hypaware.model.message_ids import Occurrences, compute_fallback_id, fallback_scope

Line = dict[str, Any]
_FIGURES = (
    *("input_tokens", "cached_input_tokens", "cache_write_input_tokens"),
    *("output_tokens", "reasoning_output_tokens", "total_tokens"),
)
_CARRIED_ORIGINATOR = "hyp-restore-session"
_VERSION = "0.0.0"
_BUILT_IN_PROVIDERS = ("openai", "ollama", "lmstudio", "amazon-bedrock")


class CodexRollout:
    def accepts(self, session_id: str) -> bool:
        return is_uuid(session_id)

    def find(self, session_id: str, environment: Environment) -> Path | None:
        if not is_uuid(session_id):
            return None
        folders = history.CodexHistory().folders(environment)
        found = (path for folder in folders for path in folder.rglob(f"rollout-*{session_id}.json*"))
        return next(iter(sorted(found)), None)

    def restore(self, session: RecordedSession, environment: Environment) -> Transcript:
        losses: Losses = Counter()
        providers = _Providers(environment)
        threads: dict[str, list[RecordedMessage]] = {}
        for message in session.messages:
            threads.setdefault(message.get("conversation_id") or session.session_id, []).append(message)
        # The main thread comes last: the session exists when its file does.
        order = sorted(threads, key=lambda name: name == _main_thread(session))
        files = []
        for name in order:
            if not is_uuid(name):
                losses["other"] += sum(len(each.rows) for each in threads[name])
                continue
            meta = _build_meta(session, name, threads[name][0], providers)
            lines = [meta, *_ThreadLines(session, name, threads[name], losses).lines]
            path = _place(name, str(threads[name][0].get("conversation_started_at")), environment)
            files.append(TranscriptFile(path, _join(lines)))
        return Transcript(_main_thread(session), tuple(files), len(session.messages), losses)

    def carry_over(self, session: RecordedSession, session_id: str, environment: Environment) -> Transcript:
        losses: Losses = Counter()
        parts = list_carried_parts(session, losses)
        started_at = parts[0].at if parts else session.messages[0].at
        lines = list(_carry_lines(session, session_id, started_at, parts, _Providers(environment).default))
        path = _place(session_id, started_at, environment)
        return Transcript(session_id, (TranscriptFile(path, _join(lines)),), len(parts), losses)


TRANSCRIPTS = CodexRollout()


class _Providers:
    """The model providers that the client knows. It does not resume a session of another one."""

    def __init__(self, environment: Environment) -> None:
        config = history.CodexHistory().folders(environment)[0].with_name("config.toml")
        settings: Line = {}
        with suppress(OSError, ValueError):
            settings = tomllib.loads(config.read_text(encoding="utf-8"))
        chosen, added = settings.get("model_provider"), settings.get("model_providers")
        self._known = {*_BUILT_IN_PROVIDERS, *(added if isinstance(added, dict) else ())}
        self.default = chosen if isinstance(chosen, str) and chosen in self._known else _BUILT_IN_PROVIDERS[0]

    def choose(self, recorded: Any) -> str:
        return recorded if isinstance(recorded, str) and recorded in self._known else self.default


def _main_thread(session: RecordedSession) -> str:
    """Return the thread that is resumed. Its id differs from that of the session if the session only continues it."""
    names = {each.get("conversation_id"): each for each in session.messages if not each.is_subagent}
    return session.session_id if session.session_id in names or not names else str(next(iter(names)))


def _place(thread: str, started_at: str, environment: Environment) -> Path:
    """Return the path that the client gave the thread: it remembers paths, and does not look for a file elsewhere.

    The name has the local time at which the thread was created. An id of version 7 holds that time; the first recorded
    message may be later.
    """
    identity = UUID(thread)
    created = datetime.fromisoformat(started_at)
    if identity.version == 7:
        created = datetime.fromtimestamp((identity.int >> 80) / 1000, UTC)
    local = created.astimezone()
    sessions = history.CodexHistory().folders(environment)[0]
    return sessions / f"{local:%Y/%m/%d}" / f"rollout-{local:%Y-%m-%dT%H-%M-%S}-{thread}.jsonl"


def _join(lines: Sequence[Line]) -> bytes:
    return b"".join(orjson.dumps(line) + b"\n" for line in lines)


def _without_none(value: Mapping[str, Any]) -> Line:
    return {name: each for name, each in value.items() if each is not None}


def _line(kind: str, at: str, payload: Mapping[str, Any]) -> Line:
    return {"timestamp": at, "type": kind, "payload": payload}


def _event(at: str, kind: str, **facts: Any) -> Line:
    return _line("event_msg", at, {"type": kind, **facts})


def _to_client_time(moment: str) -> str:
    return f"{moment[:-4]}Z" if moment.endswith("000Z") else moment


class _ThreadLines:
    """The lines of one thread of the client itself, without the first one."""

    def __init__(
        self, session: RecordedSession, thread: str, messages: Sequence[RecordedMessage], losses: Losses
    ) -> None:
        self._losses = losses
        self._scope = fallback_scope(session.session_id, thread)
        self._occurrences = Occurrences()
        self._total: Counter[str] = Counter()
        self.lines = [_build_turn(messages[0])]
        for message in messages:
            for line in self._list_lines(message):
                self.lines.append(line)
            if message.usage:
                self.lines.append(self._count(message))
        if session.title is not None and thread == session.session_id:
            at = messages[-1].at
            self.lines.append(_event(at, "thread_name_updated", thread_id=thread, thread_name=session.title))

    def _list_lines(self, message: RecordedMessage) -> Iterator[Line]:
        kind = message.rows[0]["part_type"]
        if kind == "reasoning":
            self._losses["thinking"] += len(message.rows)
            for row in message.rows:
                yield _event(message.at, "agent_reasoning", text=row.get("content_text") or "")
        elif kind in ("tool_call", "tool_result"):
            make = _to_call if kind == "tool_call" else _to_result
            yield self._identify(message, make(message.rows[0]))
        elif texts := [_to_text(row, self._losses) for row in message.rows if row["part_type"] != "error"]:
            yield from _show(message.at, message.role, "\n".join(texts))
            yield self._identify(message, _to_message_item(message.role, texts))
        else:
            self._losses["error"] += len(message.rows)

    def _identify(self, message: RecordedMessage, item: Line) -> Line:
        """Return the line of an item, with the id that it needs to be recognized."""
        role, content = get_item_role(item), convert_item(item, Counter())[1]
        occurrence = self._occurrences.add(self._scope, role, content)
        if compute_fallback_id(self._scope, role, content, occurrence) != message.id:
            item = {"type": item["type"], "id": message.id, **item}
        return _line("response_item", message.at, item)

    def _count(self, message: RecordedMessage) -> Line:
        usage = message.usage
        cached, written = usage.get("cache_read_tokens", 0), usage.get("cache_write_tokens", 0)
        counted = usage.get("input_tokens", 0) + cached, cached, written
        output = usage.get("output_tokens", 0), usage.get("reasoning_tokens", 0), usage.get("total_tokens", 0)
        last = dict(zip(_FIGURES, (*counted, *output), strict=True))
        self._total.update(last)
        info = {"total_token_usage": dict(self._total), "last_token_usage": last, "model_context_window": None}
        return _event(message.at, "token_count", info=info, rate_limits=None)


def _build_meta(session: RecordedSession, thread: str, first: RecordedMessage, providers: _Providers) -> Line:
    found = first.attributes.get("codex")
    facts: Line = found if isinstance(found, dict) else {}
    parent, cwd = first.get("parent_thread_id"), first.get("cwd") or session.cwd
    source: Any = facts.get("source") or "cli"
    if parent is not None:
        source = {"subagent": {"thread_spawn": {"parent_thread_id": parent, "depth": 1}}}
    git = {"commit_hash": first.get("head_sha"), "branch": first.get("git_branch")}
    git["repository_url"] = first.get("git_remote")
    started_at = _to_client_time(str(first.get("conversation_started_at")))
    meta = {
        "session_id": session.session_id,
        "id": thread,
        "parent_thread_id": parent,
        "timestamp": started_at,
        "cwd": cwd or str(Path.cwd()),
        "originator": first.get("entrypoint") or "codex_cli_rs",
        "cli_version": first.get("client_version") or _VERSION,
        "source": source,
        "thread_source": first.get("user_type"),
        "model_provider": providers.choose(facts.get("model_provider")),
        "git": _without_none(git) or None,
    }
    return _line("session_meta", started_at, _without_none(meta))


def _build_turn(first: RecordedMessage) -> Line:
    sandbox = first.get("permission_mode")
    turn = {
        "cwd": first.get("cwd") or str(Path.cwd()),
        "approval_policy": "on-request",
        "sandbox_policy": {"type": sandbox or "read-only"},
        "model": first.get("model") or "unknown",
        "summary": "auto",
    }
    return _line("turn_context", first.at, turn)


def _show(at: str, role: str, text: str) -> Iterator[Line]:
    """Yield the event that shows a message, unless it is a note of the client."""
    if role == "assistant":
        yield _event(at, "agent_message", message=text)
    elif role == "user" and not is_client_note(text):
        yield _event(at, "user_message", message=text, images=[], local_images=[], text_elements=[])


def _to_message_item(role: str, texts: Sequence[str]) -> Line:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text} for text in texts]}


def _to_text(row: Row, losses: Losses) -> str:
    if row["part_type"] == "text":
        return row.get("content_text") or ""
    losses["image" if row["part_type"] in ("image", "file") else "other"] += 1
    return row.get("content_text") or IMAGE_NOTE


def _to_call(row: Row) -> Line:
    arguments = parse_json(row.get("tool_args"))
    given = arguments if isinstance(arguments, str) else canonical.dumps({} if arguments is None else arguments)
    call = {"call_id": row.get("tool_call_id") or "", "name": row.get("tool_name") or ""}
    if row.get("provider_type") == "custom_tool_call":
        return {"type": "custom_tool_call", "status": "completed", **call, "input": given}
    return {"type": "function_call", **call, "arguments": given}


def _to_result(row: Row) -> Line:
    is_custom = row.get("provider_type") == "custom_tool_call_output"
    kind = "custom_tool_call_output" if is_custom else "function_call_output"
    return {"type": kind, "call_id": row.get("tool_result_for") or "", "output": _to_output(row)}


def _to_output(row: Row) -> Any:
    text = row.get("content_text") or ""
    texts = list_output_texts(text)
    return text if texts is None else [{"type": "input_text", "text": each} for each in texts]


def _carry_lines(
    session: RecordedSession, session_id: str, started_at: str, parts: Sequence[CarriedPart], provider: str
) -> Iterator[Line]:
    first = session.messages[0]
    git = {"branch": first.get("git_branch"), "commit_hash": first.get("head_sha")}
    git["repository_url"] = first.get("git_remote")
    meta = {
        "session_id": session_id,
        "id": session_id,
        "timestamp": started_at,
        "cwd": session.cwd or str(Path.cwd()),
        "originator": _CARRIED_ORIGINATOR,
        "cli_version": _VERSION,
        "source": "cli",
        "thread_source": "user",
        "model_provider": provider,
        "git": _without_none(git) or None,
        "restored_from": {"client": session.client, "session_id": session.session_id},
    }
    yield _line("session_meta", started_at, _without_none(meta))
    for part in parts:
        match part.kind:
            case "user" | "assistant":
                yield from _show(part.at, part.kind, part.text)
                item = _to_message_item(part.kind, [part.text])
            case "call":
                arguments = canonical.dumps({} if part.arguments is None else part.arguments)
                item = {"type": "function_call", "call_id": part.call_id, "name": part.tool, "arguments": arguments}
            case "result":
                item = {"type": "function_call_output", "call_id": part.call_id, "output": part.text}
        yield _line("response_item", part.at, item)
    if session.title is not None:
        yield _event(started_at, "thread_name_updated", thread_id=session_id, thread_name=session.title)
