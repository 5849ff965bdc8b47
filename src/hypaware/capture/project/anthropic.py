"""The Anthropic dialect: `/v1/messages`, which Claude Code and other clients use.

Each content block becomes one part, in requests and in responses, because a Claude Code transcript has one line per
block. The response is the JSON body or is rebuilt from the events message_start, content_block_start/delta/stop,
message_delta and message_stop; the part of a truncated response that arrived counts. The session id comes from
`metadata.user_id` (JSON with `session_id`, or `…_session_<id>`), else from x-claude-code-session-id, else it is a hash
of how the conversation begins.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from hypaware.capture.decoded import Decoded, Event
from hypaware.capture.project import failures
from hypaware.capture.project.client import Sender, sender_of
from hypaware.capture.project.sides import SUMMARY_BEGINS, kind_of_messages
from hypaware.capture.project.turn import Answer, Block, Piece, Turn
from hypaware.capture.project.values import digest, joined_texts, mapping, parsed, sequence, text, written
from hypaware.clients.claude import usage
from hypaware.model.blocks import as_blocks

DIALECT = "anthropic_messages"

_OLD_USER_ID = re.compile(r"_session_([0-9A-Za-z-]{8,64})$")
_CALLS = ("tool_use", "server_tool_use")
_RESULTS = ("tool_result", "web_search_tool_result")
_THOUGHTS = ("thinking", "redacted_thinking")
_REMINDER = "<system-reminder>"
_UNFINISHED = frozenset({"max_tokens", "pause_turn", "model_context_window_exceeded", "error"})
# The block that a delta continues if no event started it.
_BEGUN = {"text_delta": {"type": "text", "text": ""}, "thinking_delta": {"type": "thinking", "thinking": ""}}


def read(decoded: Decoded) -> Turn:
    body, sender = mapping(decoded.request), sender_of(decoded)
    is_claude = sender.name == "claude"
    user = body.get("metadata")
    user_id = mapping(user).get("user_id")
    history = [part for message in sequence(body.get("messages")) for part in _pieces_of(mapping(message))]
    agent_id = text(decoded.request_headers.get("x-claude-code-agent-id"))
    return Turn(
        dialect=DIALECT,
        kind=kind_of_messages(decoded.path, body, is_claude),
        session_id=_session_of(decoded, body, user_id),
        history=history,
        response=_answer(decoded),
        agent_id=agent_id,
        client_name=sender.name,
        client_version=sender.version,
        system_text=_system_text(body.get("system")),
        tools=body.get("tools") or None,
        columns=_columns(decoded, sender, agent_id, user_id),
    )


def _columns(decoded: Decoded, sender: Sender, agent_id: str | None, user_id: Any) -> dict[str, Any]:
    if sender.name != "claude":
        return {"user_id": text(user_id)}
    user_type, entrypoint = (*sender.remarks, None, None)[:2]
    # Only clients that send the session id as a header also send the agent id as one.
    sends_agent_ids = agent_id is not None or "x-claude-code-session-id" in decoded.request_headers
    return {
        "conversation_source": "claude",
        "agent_id": agent_id,
        "is_sidechain": (agent_id is not None) if sends_agent_ids else None,
        "user_type": user_type,
        "entrypoint": entrypoint,
    }


def _session_of(decoded: Decoded, body: dict[str, Any], user_id: Any) -> str:
    session_id = text(mapping(parsed(user_id)).get("session_id"))
    legacy = _OLD_USER_ID.search(user_id) if isinstance(user_id, str) else None
    session_id = (
        session_id
        or (legacy.group(1) if legacy else None)
        or text(decoded.request_headers.get("x-claude-code-session-id"))
    )
    return session_id or digest(DIALECT, *begins_with(body.get("system"), body.get("messages")))


def begins_with(system: Any, messages: Any) -> list[str]:
    """Return the texts with which a conversation begins. They are the same in all of its requests."""
    first = mapping(next(iter(sequence(messages)), None))
    return [joined_texts(system) or "", written([_plain(block) for block in as_blocks(first.get("content"))])]


def _system_text(system: Any) -> str | None:
    """Join the system prompt without the client's billing line, which differs by call and is no part of the prompt."""
    if isinstance(system, list):
        system = [
            block for block in system if not str(mapping(block).get("text")).startswith("x-anthropic-billing-header")
        ]
    return joined_texts(system)


def _pieces_of(message: dict[str, Any]) -> list[Piece]:
    role = text(message.get("role"))
    return [] if role is None else pieces(role, as_blocks(message.get("content")))


def pieces(role: str, blocks: list[Any], finished: int | None = None) -> list[Piece]:
    """Return a part for each block that is not empty.

    The client repeats only the first `finished` blocks in later requests, so only those may give the group its id.
    """
    parts = [
        _piece(role, block, index)
        for index, block in enumerate(blocks)
        if isinstance(block, dict) and block.get("text") != ""
    ]
    if role == "assistant" and len(parts) > 1:
        group_id = next((part.unique_id for part in parts[:finished] if part.unique_id is not None), None)
        for part in parts:
            part.group_id = group_id
    return parts


def _piece(role: str, block: Block, index: int) -> Piece:
    kind, text_value = block.get("type"), block.get("text")
    part = Piece(role, [_plain(block)], block_index=index, provider_type=role)
    if kind in _CALLS:
        part.unique_id = text(block.get("id"))
    elif kind in _RESULTS:
        part.unique_id = text(block.get("tool_use_id"))
    elif kind in _THOUGHTS:
        part.is_reasoning = True
    elif role == "system":
        part.ephemeral = part.off_thread = True
    elif role == "user" and isinstance(text_value, str):
        if text_value.startswith(_REMINDER) and text_value.rstrip().endswith("</system-reminder>"):
            part.ephemeral = part.off_thread = True
            part.columns = {"attachment_type": "system_reminder"}
        elif text_value.startswith(SUMMARY_BEGINS):
            part.columns = {"is_compact_summary": True}
    return part


def _plain(block: Any) -> Any:
    """Remove the keys that the client adds to a block for one request only."""
    if isinstance(block, dict) and "cache_control" in block:
        return {key: value for key, value in block.items() if key != "cache_control"}
    return block


def _answer(decoded: Decoded) -> Answer:
    if decoded.events is not None:
        return _Rebuilt(decoded.events).build(decoded)
    message = mapping(decoded.response)
    if message.get("type") == "error" or "error" in message or "content" not in message:
        return failures.answer(decoded, message)
    reason = message.get("stop_reason")
    counts = usage.counts_of(message.get("usage"))
    return Answer(
        parts=pieces("assistant", as_blocks(message.get("content"))),
        api_id=text(message.get("id")),
        in_transcript=True,
        model=message.get("model"),
        usage=None if counts is None else usage.usage(counts),
        finish_reason=reason,
        complete=isinstance(reason, str) and reason not in _UNFINISHED,
    )


class _Rebuilt:
    """A message rebuilt from the events that arrived."""

    def __init__(self, events: tuple[Event, ...]) -> None:
        self._blocks: dict[int, Block] = {}
        self._inputs: dict[int, list[str]] = {}
        self._texts: dict[tuple[int, str], list[str]] = {}
        self._message: dict[str, Any] = {}
        self._counts: usage.Counts | None = None
        self._reason: Any = None
        self._finished = 0
        self._stopped = False
        self._error: dict[str, Any] | None = None
        for event in events:
            self._apply(event)

    def _apply(self, event: Event) -> None:
        data = mapping(event.data)
        match data.get("type") or event.type:
            case "message_start":
                self._message = mapping(data.get("message"))
                self._add_usage(self._message.get("usage"))
            case "content_block_start":
                self._start(data)
            case "content_block_delta":
                self._apply_delta(data.get("index"), mapping(data.get("delta")))
            case "content_block_stop":
                self._finished += 1
            case "message_delta":
                self._reason = mapping(data.get("delta")).get("stop_reason") or self._reason
                self._add_usage(data.get("usage"))
            case "message_stop":
                self._stopped = True
            case "error":
                self._error = data

    def _start(self, data: dict[str, Any]) -> None:
        index, block = data.get("index"), data.get("content_block")
        if isinstance(index, int) and isinstance(block, dict):
            self._blocks[index] = dict(block)

    def _apply_delta(self, index: Any, delta: dict[str, Any]) -> None:
        kind = delta.get("type")
        if isinstance(index, int) and isinstance(kind, str) and kind in _BEGUN:
            self._blocks.setdefault(index, {**_BEGUN[kind]})
        if not isinstance(index, int) or index not in self._blocks:
            return
        if kind == "input_json_delta":
            if isinstance(more := delta.get("partial_json"), str):
                self._inputs.setdefault(index, []).append(more)
        elif kind == "citations_delta":
            block = self._blocks[index]
            block["citations"] = [*sequence(block.get("citations")), delta.get("citation")]
        else:
            # Every kind of delta, including unknown ones, stores its text under the same key as the block.
            for name, more in delta.items():
                if name != "type" and isinstance(more, str):
                    self._texts.setdefault((index, name), []).append(more)

    def _add_usage(self, reported: Any) -> None:
        counts = usage.counts_of(reported)
        if counts is not None:
            self._counts = usage.newest(self._counts, counts)

    def _build_blocks(self) -> list[Block]:
        for (index, name), more in self._texts.items():
            block = self._blocks[index]
            start = block.get(name)
            block[name] = (start if isinstance(start, str) else "") + "".join(more)
        for index, fragments in self._inputs.items():
            if joined := "".join(fragments):
                value = parsed(joined)
                self._blocks[index]["input"] = joined if value is None else value
        return [self._blocks[index] for index in sorted(self._blocks)]

    def build(self, decoded: Decoded) -> Answer:
        ended = self._stopped or self._reason is not None
        if self._error is not None or not ended or not self._message:
            outcome = failures.answer(decoded, self._error or {})
        else:
            is_complete = not isinstance(self._reason, str) or self._reason not in _UNFINISHED
            outcome = Answer(finish_reason=self._reason, complete=is_complete)
        parts = pieces("assistant", self._build_blocks(), self._finished)
        counts = None if self._counts is None else usage.usage(self._counts)
        return replace(
            outcome,
            parts=parts,
            api_id=text(self._message.get("id")),
            in_transcript=True,
            model=self._message.get("model"),
            # The client repeats a call that failed before its first output; its cost is only in the raw exchange.
            usage=counts if parts or ended else None,
        )
