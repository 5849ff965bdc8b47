"""Turn a Codex thread into an exchange; its messages are built one by one.

The thread id is the session's id, or else the UUID in the file name, or else the file name; it becomes the
conversation id. The session id is that of the session to which the thread belongs: a subagent's thread names its
parent's session.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from hypaware.clients.client import ImportItem, Provenance
from hypaware.clients.codex import rollout
from hypaware.clients.codex.rollout import Payload, RolloutDocument, RolloutThread, absolute_folder
from hypaware.clients.reader import SourceReader, SourceSnapshot
from hypaware.model.columns import format_timestamp
from hypaware.model.expand import Exchange, Message
from hypaware.model.sanitize import to_utc_text
from hypaware.text import strip_url_credentials

_NATIVE = {"codex": {"identity_source": "native"}}
_FALLBACK = {"codex": {"identity_source": "gateway_fallback"}}
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
# The client's local time, without a time zone; old names have only the day.
_NAME_TIME = re.compile(r"rollout-([0-9]{4}-[0-9]{2}-[0-9]{2})(?:T([0-9]{2})-([0-9]{2})-([0-9]{2}))?")


def build_thread_item(reader: SourceReader, thread: RolloutThread) -> ImportItem:
    return _build_item(reader.source, thread, build_line_messages(reader, thread))


def build_document_item(reader: SourceReader, document: RolloutDocument) -> ImportItem:
    thread = RolloutThread(meta=document.session, cwd=absolute_folder(document.session.get("cwd")))
    return _build_item(reader.source, thread, build_item_messages(reader, document))


def _build_item(source: SourceSnapshot, thread: RolloutThread, messages: Iterable[Message]) -> ImportItem:
    meta = thread.meta
    in_name = _UUID.search(source.path.name)
    conversation = _text_or_none(meta.get("id")) or (in_name.group() if in_name else source.path.stem)
    session = _text_or_none(meta.get("session_id")) or conversation
    columns, attributes = _shared_facts(thread)
    attributes["session_id"] = session
    if conversation != session:
        attributes["thread_id"] = conversation
    exchange = Exchange(
        provider="openai",
        session_id=session,
        conversation_id=conversation,
        client_name="codex",
        client_version=_text_or_none(meta.get("cli_version")),
        started_at=to_utc_text(meta.get("timestamp")) or thread.first_time,
        fallback_time=_fallback_time(source),
        columns=columns,
        attributes={"codex": attributes},
        messages=messages,
    )
    provenance = Provenance(client_name="codex", source_path=str(source.path), native_id=conversation)
    return ImportItem("ai_gateway_messages", "ai_gateway.projected_exchange", exchange, provenance)


def _shared_facts(thread: RolloutThread) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the columns and the `attributes.codex` that all rows share."""
    meta, turn = thread.meta, thread.turn
    found = meta.get("git")
    git: Payload = found if isinstance(found, dict) else {}
    policy = turn.get("sandbox_policy")
    sandbox = _text_or_none(policy.get("type")) if isinstance(policy, dict) else None
    sandbox = sandbox or _text_or_none(turn.get("sandbox"))
    remote = _text_or_none(git.get("repository_url")) or _text_or_none(git.get("origin_url"))
    remote = None if remote is None else strip_url_credentials(remote)
    commit = _text_or_none(git.get("commit_hash")) or _text_or_none(git.get("commit"))
    thread_source = _text_or_none(meta.get("thread_source"))
    columns = {
        "conversation_source": "codex",
        "model": _text_or_none(turn.get("model")),
        "cwd": thread.cwd,
        "git_branch": _text_or_none(git.get("branch")),
        "git_remote": remote,
        "head_sha": commit,
        "entrypoint": _text_or_none(meta.get("originator")),
        "user_type": thread_source,
        "permission_mode": sandbox,
        "is_sidechain": None if thread_source is None else thread_source == "subagent",
        "parent_thread_id": _text_or_none(meta.get("parent_thread_id")),
    }
    has_changes = git.get("has_changes")
    attributes = {
        "workspace": thread.cwd,
        "git_origin_url": remote,
        "git_commit": commit,
        "sandbox": sandbox,
        "originator": columns["entrypoint"],
        "thread_source": thread_source,
        "model_provider": _text_or_none(meta.get("model_provider")),
        "source": _text_or_none(meta.get("source")),
        "has_changes": has_changes if isinstance(has_changes, bool) else None,
    }
    return _without_nulls(columns), _without_nulls(attributes)


def _without_nulls(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def _fallback_time(source: SourceSnapshot) -> tuple[str, str]:
    if in_name := _NAME_TIME.match(source.path.name):
        day, *clock = in_name.groups("00")
        if moment := to_utc_text(f"{day}T{':'.join(clock)}Z"):
            return moment, "file_name"
    return format_timestamp(datetime.fromtimestamp(source.mtime_ns / 10**9, UTC)), "file_mtime"


def build_line_messages(reader: SourceReader, thread: RolloutThread) -> Iterator[Message]:
    for slot in thread.slots:
        value = slot.line.value
        created_at = value.get("timestamp")
        wanted = reader.wants(slot.line, to_utc_text(created_at), new=slot.new)
        if slot.new and not wanted:
            for offset in slot.counts_at:
                reader.exclude_with(offset)
        fresh = wanted and not slot.held
        yield _build_message(value["payload"], created_at, fresh, reader.skipped, slot.usage)


def build_item_messages(reader: SourceReader, document: RolloutDocument) -> Iterator[Message]:
    skipped = reader.skipped
    for payload in document.items:
        if not isinstance(payload, dict):
            skipped["not_an_object"] += 1
        elif rollout.makes_message(payload):
            created_at = payload.get("timestamp")
            yield _build_message(payload, created_at, reader.wants(document.line, to_utc_text(created_at)), skipped)
        else:
            skipped[rollout.item_skip_reason(payload) or rollout.unknown_type_reason(payload.get("type"), skipped)] += 1


def _build_message(
    payload: rollout.Payload,
    created_at: Any,
    fresh: bool,
    skipped: Counter[str],
    usage: Mapping[str, int] | None = None,
) -> Message:
    role, content = rollout.convert_item(payload, skipped if fresh else Counter())
    own_id = rollout.get_item_id(payload)
    return Message(
        role=role,
        content=content,
        created_at=created_at,
        message_id=own_id,
        fresh=fresh,
        usage=usage,
        columns={"provider_type": payload["type"]},
        attributes=_NATIVE if own_id else _FALLBACK,
    )
