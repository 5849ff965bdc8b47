"""Conversations for tests of their display, written down message by message."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from hypaware.index.conversation import RecordedConversation, Thread
from hypaware.index.messages import Message

SESSION = "0dc91b82-3238-4907-98f3-ae0d1d845b97"
_BEGIN = datetime(2026, 11, 15, 7, 0, tzinfo=UTC)
TOKENS = {"input": 3, "output": 50, "cache_read": 11000, "cache_write": 512, "reasoning": 0}
Part = dict[str, Any]


def at(second: float) -> str:
    return (_BEGIN + timedelta(seconds=second)).isoformat().replace("+00:00", "Z")


def part(type_: str, text: str | None = None, **fields: Any) -> Part:
    plain = {
        "part_id": "part",
        "type": type_,
        "text": text,
        "tool_name": None,
        "tool_call_id": None,
        "tool_args": None,
        "tool_result_for": None,
        "is_error": False,
        "is_typed": False,
    }
    return {**plain, **fields}


def call(id_: str, name: str = "Bash", args: Any = None) -> Part:
    return part("tool_call", tool_name=name, tool_call_id=id_, tool_args=args)


def result(id_: str, text: str | None = "done", *, failed: bool = False, name: str = "Bash") -> Part:
    return part("tool_result", text, tool_name=name, tool_call_id=id_, tool_result_for=id_, is_error=failed)


def message(second: float, role: str, *parts: Part, **fields: Any) -> Message:
    plain = {
        "message_id": f"message-{second}",
        "index": int(second),
        "at": at(second),
        "role": role,
        "model": "claude-opus-5-5" if role == "assistant" else None,
        "parent": f"message-{second - 1}",
        "thread": None,
        "is_sidechain": False,
        "is_turn": any(each["is_typed"] for each in parts),
        "is_compact_summary": False,
        "parts": list(parts),
        "tokens": None,
        "cost_usd": None,
    }
    return {**plain, **fields}


def typed(second: float, text: str, **fields: Any) -> Message:
    return message(second, "user", part("text", text, is_typed=True), **fields)


def said(second: float, text: str, **fields: Any) -> Message:
    return message(second, "assistant", part("text", text), **fields)


def called(second: float, id_: str, name: str = "Bash", args: Any = None, **fields: Any) -> Message:
    return message(second, "assistant", call(id_, name, args), **fields)


def answered(second: float, id_: str, text: str | None = "done", *, failed: bool = False, **fields: Any) -> Message:
    return message(second, "user", result(id_, text, failed=failed), **fields)


def in_agent(name: str, *messages: Message) -> list[Message]:
    """The messages as those of a subagent; the first one is its prompt."""
    changed = [{**each, "thread": name, "is_sidechain": True} for each in messages]
    changed[0]["parent"] = None
    return changed


def conversation(*messages: Message, threads: tuple[Thread, ...] = (), **session: Any) -> RecordedConversation:
    def read(thread: Thread | None) -> Iterator[Message]:
        return (each for each in messages if thread is None or each["thread"] == thread.name)

    document = {
        "session_id": SESSION,
        "client": "claude",
        "machine": "gw-1",
        "project": "project",
        "cwd": "/home/dev/project",
        "branch": "main",
        "models": ["claude-opus-5-5"],
        "title": "Fix the cart",
        "started_at": messages[0]["at"] if messages else None,
        "ended_at": messages[-1]["at"] if messages else None,
        "turns": sum(each["is_turn"] for each in messages),
        "messages": len(messages),
        "parts": sum(len(each["parts"]) for each in messages),
        "tool_calls": sum(each["type"] == "tool_call" for message_ in messages for each in message_["parts"]),
        "errors": sum(each["is_error"] for message_ in messages for each in message_["parts"]),
        "tokens": TOKENS,
        "cost_usd": 0.42,
        "unpriced_models": [],
        **session,
    }
    return RecordedConversation(document, (Thread(None), *threads), read)
