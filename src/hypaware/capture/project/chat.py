"""The Chat Completions dialect: `/v1/chat/completions`, streamed or not; `choices[0]` is the response.

Each content block becomes one part, in the table's terms: `tool_calls` (and their older form `function_call`) become
tool_use blocks of the assistant, a message of role `tool` becomes a tool_result, and spoken output becomes an `audio`
block with its transcript. The session id is `metadata.session_id` or, since the dialect has none, a hash of how the
conversation begins.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

from hypaware.capture.decoded import Decoded, Event
from hypaware.capture.project import failures
from hypaware.capture.project.anthropic import begins_with
from hypaware.capture.project.client import sender_of
from hypaware.capture.project.responses import usage_of
from hypaware.capture.project.turn import Answer, Block, Kind, Piece, Turn
from hypaware.capture.project.values import digest, joined_texts, mapping, parsed, sequence, text
from hypaware.model.blocks import as_blocks

DIALECT = "openai_chat"

_SYSTEM = ("system", "developer")
_NAMED = ("tool_use", "audio")
_GROWING = ("content", "reasoning_content", "reasoning", "refusal", "arguments", "input", "transcript")
_UNFINISHED = ("length", "content_filter")


def read(decoded: Decoded) -> Turn:
    body, sender = mapping(decoded.request), sender_of(decoded)
    messages = [mapping(message) for message in sequence(body.get("messages"))]
    prompts = [message for message in messages if message.get("role") in _SYSTEM]
    others = [message for message in messages if message.get("role") not in _SYSTEM]
    system = "\n".join(prompt for message in prompts if (prompt := joined_texts(message.get("content")))) or None
    session_id = text(mapping(body.get("metadata")).get("session_id"))
    return Turn(
        dialect=DIALECT,
        kind=Kind.TURN,
        session_id=session_id or digest(DIALECT, *begins_with(system, others)),
        history=[part for message in others for part in _pieces(message)],
        response=_answer(decoded),
        client_name=sender.name,
        client_version=sender.version,
        system_text=system,
        tools=body.get("tools") or body.get("functions") or None,
        columns={"user_id": text(body.get("user"))},
    )


def _pieces(message: dict[str, Any]) -> list[Piece]:
    role = text(message.get("role"))
    if role is None:
        return []
    if role == "tool":
        content = message.get("content")
        blocks: list[Block] = [{"type": "tool_result", "tool_use_id": message.get("tool_call_id"), "content": content}]
    else:
        blocks = [_block(block) for block in as_blocks(message.get("content")) if isinstance(block, dict)]
        if reasoning := text(message.get("reasoning_content")) or text(message.get("reasoning")):
            blocks.insert(0, {"type": "thinking", "thinking": reasoning})
        if refusal := text(message.get("refusal")):
            blocks.append({"type": "text", "text": refusal})
        if isinstance(audio := message.get("audio"), dict):
            blocks.append({"type": "audio", "id": audio.get("id"), "text": audio.get("transcript")})
        blocks += [_call(mapping(call)) for call in sequence(message.get("tool_calls"))]
        if isinstance(legacy := message.get("function_call"), dict):
            blocks.append(_call({"function": legacy}))
    group_id = next(
        (call for block in blocks if block.get("type") == "tool_use" and (call := text(block.get("id")))), None
    )
    return [
        Piece(
            role=role,
            content=[block],
            unique_id=text(block.get("id" if block.get("type") in _NAMED else "tool_use_id")),
            group_id=group_id,
            is_reasoning=block.get("type") == "thinking",
            block_index=index,
            provider_type=role,
        )
        for index, block in enumerate(blocks)
        if block.get("text") != ""
    ]


def _block(block: Block) -> Block:
    """Convert a block of this dialect to one of the table's kinds."""
    match block.get("type"):
        case "input_text" | "output_text" | "refusal":
            return {"type": "text", "text": block.get("text") or block.get("refusal")}
        case "image_url":
            return {**block, "type": "image"}
        case _:
            return block


def _call(call: dict[str, Any]) -> Block:
    function = mapping(call.get("function") or call.get("custom"))
    arguments = function.get("arguments", function.get("input"))
    value = parsed(arguments)
    return {
        "type": "tool_use",
        "id": call.get("id"),
        "name": function.get("name"),
        "input": arguments if value is None else value,
    }


def _answer(decoded: Decoded) -> Answer:
    body = _rebuilt(decoded.events) if decoded.events is not None else mapping(decoded.response)
    choice = mapping(next(iter(sequence(body.get("choices"))), None))
    reason = choice.get("finish_reason")
    message = mapping(choice.get("message"))
    if body.get("error") or not choice or (decoded.events is not None and reason is None):
        outcome = failures.answer(decoded, body)
    else:
        outcome = Answer(finish_reason=reason, complete=isinstance(reason, str) and reason not in _UNFINISHED)
    return replace(
        outcome,
        parts=_pieces({"role": "assistant", **message}) if message else [],
        api_id=text(body.get("id")),
        model=body.get("model"),
        usage=usage_of(body.get("usage")),
    )


def _rebuilt(events: tuple[Event, ...]) -> dict[str, Any]:
    """Assemble the chunks of a stream into one body."""
    body: dict[str, Any] = {}
    texts, calls, nested = _Grown(), defaultdict[int, _Call](_Call), defaultdict[str, _Grown](_Grown)
    reason, any_choice = None, False
    for event in events:
        chunk = mapping(event.data)
        body.update({name: chunk[name] for name in ("id", "model", "usage", "error") if chunk.get(name)})
        for choice in map(mapping, sequence(chunk.get("choices"))):
            if choice.get("index", 0) != 0:
                continue
            any_choice, reason = True, choice.get("finish_reason") or reason
            delta = mapping(choice.get("delta"))
            texts.add(delta)
            for number, call in enumerate(map(mapping, sequence(delta.get("tool_calls")))):
                if isinstance(index := call.get("index", number), int):
                    calls[index].add(call)
            for name in ("function_call", "audio"):
                if isinstance(delta.get(name), dict):
                    nested[name].add(delta[name])
    if any_choice:
        message: dict[str, Any] = texts.build() | {name: fragments.build() for name, fragments in nested.items()}
        message["tool_calls"] = [calls[index].build() for index in sorted(calls)]
        body["choices"] = [{"message": message, "finish_reason": reason}]
    return body


class _Grown:
    """Texts that arrived in fragments. Of names and ids, which some providers repeat, the first value counts."""

    def __init__(self) -> None:
        self._fragments: defaultdict[str, list[str]] = defaultdict(list)

    def add(self, more: dict[str, Any]) -> None:
        for name, value in more.items():
            if value and isinstance(value, str):
                self._fragments[name].append(value)

    def build(self) -> dict[str, Any]:
        return {name: "".join(found) if name in _GROWING else found[0] for name, found in self._fragments.items()}


class _Call:
    """A tool call in fragments; its name and arguments are under `function` or `custom`."""

    def __init__(self) -> None:
        self._about, self._tool = _Grown(), _Grown()

    def add(self, more: dict[str, Any]) -> None:
        self._about.add(more)
        self._tool.add(mapping(more.get("function") or more.get("custom")))

    def build(self) -> dict[str, Any]:
        return self._about.build() | {"function": self._tool.build()}
