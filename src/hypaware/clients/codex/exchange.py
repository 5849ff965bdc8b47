"""Turn a Codex thread into an exchange.

The thread id is the session's id, or else the UUID in the file name, or else the file name; it becomes the
conversation id. The session id is that of the session to which the thread belongs: a subagent's thread names its
parent's session.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from hypaware.backfill.pinned import Pinned
from hypaware.backfill.provider import Item, Provenance
from hypaware.backfill.reading import Reading
from hypaware.clients.codex.document import Document
from hypaware.clients.codex.items import Payload
from hypaware.clients.codex.messages import messages_of_items, messages_of_lines
from hypaware.clients.codex.rollout import Thread, folder
from hypaware.clients.git import without_userinfo
from hypaware.model.columns import timestamp_text
from hypaware.model.exchange import Exchange, Message
from hypaware.model.storable import utc_text

_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
# The client's local time, without a time zone; old names have only the day.
_NAME_TIME = re.compile(r"rollout-([0-9]{4}-[0-9]{2}-[0-9]{2})(?:T([0-9]{2})-([0-9]{2})-([0-9]{2}))?")


def item_of_thread(reading: Reading, thread: Thread) -> Item:
    return _item(reading.source, thread, messages_of_lines(reading, thread))


def item_of_document(reading: Reading, document: Document) -> Item:
    thread = Thread(meta=document.session, cwd=folder(document.session.get("cwd")))
    return _item(reading.source, thread, messages_of_items(reading, document))


def _item(source: Pinned, thread: Thread, messages: Iterable[Message]) -> Item:
    meta = thread.meta
    in_name = _UUID.search(source.path.name)
    conversation = _text(meta.get("id")) or (in_name.group() if in_name else source.path.stem)
    session = _text(meta.get("session_id")) or conversation
    columns, attributes = _facts(thread)
    attributes["session_id"] = session
    if conversation != session:
        attributes["thread_id"] = conversation
    exchange = Exchange(
        provider="openai",
        session_id=session,
        conversation_id=conversation,
        client_name="codex",
        client_version=_text(meta.get("cli_version")),
        started_at=utc_text(meta.get("timestamp")) or thread.first_time,
        fallback_time=_fallback_time(source),
        columns=columns,
        attributes={"codex": attributes},
        messages=messages,
    )
    provenance = Provenance(client_name="codex", source_path=str(source.path), native_id=conversation)
    return Item("ai_gateway_messages", "ai_gateway.projected_exchange", exchange, provenance)


def _facts(thread: Thread) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the columns and the `attributes.codex` that all rows share."""
    meta, turn = thread.meta, thread.turn
    found = meta.get("git")
    git: Payload = found if isinstance(found, dict) else {}
    policy = turn.get("sandbox_policy")
    sandbox = _text(policy.get("type")) if isinstance(policy, dict) else None
    sandbox = sandbox or _text(turn.get("sandbox"))
    remote = _text(git.get("repository_url")) or _text(git.get("origin_url"))
    remote = None if remote is None else without_userinfo(remote)
    commit = _text(git.get("commit_hash")) or _text(git.get("commit"))
    thread_source = _text(meta.get("thread_source"))
    columns = {
        "conversation_source": "codex",
        "model": _text(turn.get("model")),
        "cwd": thread.cwd,
        "git_branch": _text(git.get("branch")),
        "git_remote": remote,
        "head_sha": commit,
        "entrypoint": _text(meta.get("originator")),
        "user_type": thread_source,
        "permission_mode": sandbox,
        "is_sidechain": None if thread_source is None else thread_source == "subagent",
        "parent_thread_id": _text(meta.get("parent_thread_id")),
    }
    has_changes = git.get("has_changes")
    attributes = {
        "workspace": thread.cwd,
        "git_origin_url": remote,
        "git_commit": commit,
        "sandbox": sandbox,
        "originator": columns["entrypoint"],
        "thread_source": thread_source,
        "model_provider": _text(meta.get("model_provider")),
        "source": _text(meta.get("source")),
        "has_changes": has_changes if isinstance(has_changes, bool) else None,
    }
    return _known(columns), _known(attributes)


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def _fallback_time(source: Pinned) -> tuple[str, str]:
    if in_name := _NAME_TIME.match(source.path.name):
        day, *clock = in_name.groups("00")
        if moment := utc_text(f"{day}T{':'.join(clock)}Z"):
            return moment, "file_name"
    return timestamp_text(datetime.fromtimestamp(source.mtime_ns / 10**9, UTC)), "file_mtime"
