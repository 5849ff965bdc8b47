"""The Anthropic dialect: `/v1/messages`, as Claude Code and others speak it.

A piece per block, in the request and in the answer, since that is what a transcript has a line for. The answer is the
JSON body, or rebuilt from message_start, content_block_start/delta/stop, message_delta and message_stop; what came of
one that was cut short counts. A session is named by `metadata.user_id` (JSON with `session_id`, or `…_session_<id>`),
else by x-claude-code-session-id, else by a hash of how the conversation begins.
"""

from __future__ import annotations

import re
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
# What a delta continues, where nobody said that it begins.
_BEGUN = {"text_delta": {"type": "text", "text": ""}, "thinking_delta": {"type": "thinking", "thinking": ""}}


def read(decoded: Decoded) -> Turn:
    body, sender = mapping(decoded.request), sender_of(decoded)
    is_claude = sender.name == "claude"
    user = body.get("metadata")
    user_id = mapping(user).get("user_id")
    history = [piece for message in sequence(body.get("messages")) for piece in _pieces_of(mapping(message))]
    agent_id = text(decoded.request_headers.get("x-claude-code-agent-id"))
    return Turn(
        dialect=DIALECT,
        kind=kind_of_messages(decoded.path, body, is_claude),
        session_id=_session_of(decoded, body, user_id),
        history=history,
        answer=_answer(decoded),
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
    # Only clients that name their session in a header name their agents in one.
    names_agents = agent_id is not None or "x-claude-code-session-id" in decoded.request_headers
    return {
        "conversation_source": "claude",
        "agent_id": agent_id,
        "is_sidechain": (agent_id is not None) if names_agents else None,
        "user_type": user_type,
        "entrypoint": entrypoint,
    }


def _session_of(decoded: Decoded, body: dict[str, Any], user_id: Any) -> str:
    named = text(mapping(parsed(user_id)).get("session_id"))
    old = _OLD_USER_ID.search(user_id) if isinstance(user_id, str) else None
    named = named or (old.group(1) if old else None) or text(decoded.request_headers.get("x-claude-code-session-id"))
    return named or digest(DIALECT, *begins_with(body.get("system"), body.get("messages")))


def begins_with(*shown: Any) -> list[str]:
    """How a conversation without a name begins: what stays the same in all of its requests."""
    system, messages = shown
    first = mapping(next(iter(sequence(messages)), None))
    return [joined_texts(system) or "", written([_plain(block) for block in as_blocks(first.get("content"))])]


def _system_text(system: Any) -> str | None:
    """Without the line in which the client accounts for itself: it is no part of the prompt, and differs by call."""
    if isinstance(system, list):
        system = [
            block for block in system if not str(mapping(block).get("text")).startswith("x-anthropic-billing-header")
        ]
    return joined_texts(system)


def _pieces_of(message: dict[str, Any]) -> list[Piece]:
    role = text(message.get("role"))
    return [] if role is None else pieces(role, as_blocks(message.get("content")))


def pieces(role: str, blocks: list[Any], finished: int | None = None) -> list[Piece]:
    """A piece for each block that can make a part; only the first `finished` ones are going to be shown again."""
    made = [
        _piece(role, block, index)
        for index, block in enumerate(blocks)
        if isinstance(block, dict) and block.get("text") != ""
    ]
    if role == "assistant" and len(made) > 1:
        group = next((piece.strong_id for piece in made[:finished] if piece.strong_id is not None), None)
        for piece in made:
            piece.group = group
    return made


def _piece(role: str, block: Block, index: int) -> Piece:
    kind, said = block.get("type"), block.get("text")
    piece = Piece(role, [_plain(block)], block_index=index, provider_type=role)
    if kind in _CALLS:
        piece.strong_id = text(block.get("id"))
    elif kind in _RESULTS:
        piece.strong_id = text(block.get("tool_use_id"))
    elif kind in _THOUGHTS:
        piece.thought = True
    elif role == "system":
        piece.fleeting = piece.aside = True
    elif role == "user" and isinstance(said, str):
        if said.startswith(_REMINDER) and said.rstrip().endswith("</system-reminder>"):
            piece.fleeting = piece.aside = True
            piece.columns = {"attachment_type": "system_reminder"}
        elif said.startswith(SUMMARY_BEGINS):
            piece.columns = {"is_compact_summary": True}
    return piece


def _plain(block: Any) -> Any:
    """A block without what the client adds for this request only."""
    if isinstance(block, dict) and "cache_control" in block:
        return {key: value for key, value in block.items() if key != "cache_control"}
    return block


def _answer(decoded: Decoded) -> Answer:
    if decoded.events is not None:
        return _Rebuilt(decoded.events).answer(decoded)
    message = mapping(decoded.response)
    if message.get("type") == "error" or "error" in message or "content" not in message:
        return failures.answer(decoded, message)
    reason = message.get("stop_reason")
    counts = usage.counts_of(message.get("usage"))
    return Answer(
        pieces=pieces("assistant", as_blocks(message.get("content"))),
        api_id=text(message.get("id")),
        is_native=True,
        model=message.get("model"),
        usage=None if counts is None else usage.usage(counts),
        finish_reason=reason,
        complete=isinstance(reason, str) and reason not in _UNFINISHED,
    )


class _Rebuilt:
    """A message put together from its events, as far as they came."""

    def __init__(self, events: tuple[Event, ...]) -> None:
        self._blocks: dict[int, Block] = {}
        self._inputs: dict[int, list[str]] = {}
        self._grown: dict[tuple[int, str], list[str]] = {}
        self._message: dict[str, Any] = {}
        self._counts: usage.Counts | None = None
        self._reason: Any = None
        self._finished = 0
        self._stopped = False
        self._error: dict[str, Any] | None = None
        for event in events:
            self._take(event)

    def _take(self, event: Event) -> None:
        data = mapping(event.data)
        match data.get("type") or event.type:
            case "message_start":
                self._message = mapping(data.get("message"))
                self._count(self._message.get("usage"))
            case "content_block_start":
                self._start(data)
            case "content_block_delta":
                self._grow(data.get("index"), mapping(data.get("delta")))
            case "content_block_stop":
                self._finished += 1
            case "message_delta":
                self._reason = mapping(data.get("delta")).get("stop_reason") or self._reason
                self._count(data.get("usage"))
            case "message_stop":
                self._stopped = True
            case "error":
                self._error = data

    def _start(self, data: dict[str, Any]) -> None:
        index, block = data.get("index"), data.get("content_block")
        if isinstance(index, int) and isinstance(block, dict):
            self._blocks[index] = dict(block)

    def _grow(self, index: Any, delta: dict[str, Any]) -> None:
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
            # Each kind of delta, also a new one, has its text under the name that the block has it under.
            for name, more in delta.items():
                if name != "type" and isinstance(more, str):
                    self._grown.setdefault((index, name), []).append(more)

    def _count(self, noted: Any) -> None:
        counts = usage.counts_of(noted)
        if counts is not None:
            self._counts = usage.newest(self._counts, counts)

    def _whole_blocks(self) -> list[Block]:
        for (index, name), more in self._grown.items():
            block = self._blocks[index]
            begun = block.get(name)
            block[name] = (begun if isinstance(begun, str) else "") + "".join(more)
        for index, fragments in self._inputs.items():
            if whole := "".join(fragments):
                value = parsed(whole)
                self._blocks[index]["input"] = whole if value is None else value
        return [self._blocks[index] for index in sorted(self._blocks)]

    def answer(self, decoded: Decoded) -> Answer:
        ended = self._stopped or self._reason is not None
        if self._error is not None or not ended or not self._message:
            failed = failures.answer(decoded, self._error or {})
        else:
            failed = Answer(complete=self._reason not in _UNFINISHED if isinstance(self._reason, str) else True)
        made = pieces("assistant", self._whole_blocks(), self._finished)
        counts = None if self._counts is None else usage.usage(self._counts)
        return Answer(
            pieces=made,
            api_id=text(self._message.get("id")),
            is_native=True,
            model=self._message.get("model"),
            # A call that broke before it said anything is made again: what it cost stands in the raw row only.
            usage=counts if made or ended else None,
            finish_reason="error" if failed.failed else self._reason,
            complete=failed.complete,
            error_code=failed.error_code,
            error_message=failed.error_message,
            failed=failed.failed,
        )
