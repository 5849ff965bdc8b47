"""The Chat Completions dialect: `/v1/chat/completions`, streamed or not; `choices[0]` is the answer.

A piece per block, in the table's words: `tool_calls` are tool_use blocks of the assistant, a message of role `tool` is
a tool_result. Who speaks it names no session: a hash of how the conversation begins stands for it, unless
`metadata.session_id` names one.
"""

from __future__ import annotations

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
_UNFINISHED = ("length", "content_filter")


def read(decoded: Decoded) -> Turn:
    body, sender = mapping(decoded.request), sender_of(decoded)
    messages = [mapping(message) for message in sequence(body.get("messages"))]
    prompts = [message for message in messages if message.get("role") in _SYSTEM]
    others = [message for message in messages if message.get("role") not in _SYSTEM]
    system = "\n".join(said for message in prompts if (said := joined_texts(message.get("content")))) or None
    named = text(mapping(body.get("metadata")).get("session_id"))
    return Turn(
        dialect=DIALECT,
        kind=Kind.TURN,
        session_id=named or digest(DIALECT, *begins_with(system, others)),
        history=[piece for message in others for piece in _pieces(message)],
        answer=_answer(decoded),
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
        if thought := text(message.get("reasoning_content")) or text(message.get("reasoning")):
            blocks.insert(0, {"type": "thinking", "thinking": thought})
        if refusal := text(message.get("refusal")):
            blocks.append({"type": "text", "text": refusal})
        blocks += [_call(mapping(call)) for call in sequence(message.get("tool_calls"))]
        if isinstance(old := message.get("function_call"), dict):
            blocks.append(_call({"function": old}))
    group = next(
        (call for block in blocks if block.get("type") == "tool_use" and (call := text(block.get("id")))), None
    )
    return [
        Piece(
            role=role,
            content=[block],
            strong_id=text(block.get("id" if block.get("type") == "tool_use" else "tool_use_id")),
            group=group,
            thought=block.get("type") == "thinking",
            block_index=index,
            provider_type=role,
        )
        for index, block in enumerate(blocks)
        if block.get("text") != ""
    ]


def _block(block: Block) -> Block:
    """A block of this dialect as one of the table's kinds."""
    match block.get("type"):
        case "input_text" | "output_text" | "refusal":
            return {"type": "text", "text": block.get("text") or block.get("refusal")}
        case "image_url":
            return {**block, "type": "image"}
        case _:
            return block


def _call(call: dict[str, Any]) -> Block:
    function = mapping(call.get("function") or call.get("custom"))
    given = function.get("arguments", function.get("input"))
    value = parsed(given)
    return {
        "type": "tool_use",
        "id": call.get("id"),
        "name": function.get("name"),
        "input": given if value is None else value,
    }


def _answer(decoded: Decoded) -> Answer:
    body = _rebuilt(decoded.events) if decoded.events is not None else mapping(decoded.response)
    choice = mapping(next(iter(sequence(body.get("choices"))), None))
    reason = choice.get("finish_reason")
    said = mapping(choice.get("message"))
    failed = Answer()
    if body.get("error") or not choice or (decoded.events is not None and reason is None):
        failed = failures.answer(decoded, body)
    return Answer(
        pieces=_pieces({"role": "assistant", **said}) if said else [],
        api_id=text(body.get("id")),
        model=body.get("model"),
        usage=usage_of(body.get("usage")),
        finish_reason="error" if failed.failed else reason,
        complete=not failed.failed and isinstance(reason, str) and reason not in _UNFINISHED,
        error_code=failed.error_code,
        error_message=failed.error_message,
        failed=failed.failed,
    )


def _rebuilt(events: tuple[Event, ...]) -> dict[str, Any]:
    """The chunks of a stream as the one body that they make."""
    body: dict[str, Any] = {}
    texts: dict[str, list[str]] = {}
    calls: dict[int, dict[str, Any]] = {}
    reason, any_choice = None, False
    for event in events:
        chunk = mapping(event.data)
        body.update({name: chunk[name] for name in ("id", "model", "usage", "error") if chunk.get(name)})
        for choice in map(mapping, sequence(chunk.get("choices"))):
            if choice.get("index", 0) != 0:
                continue
            any_choice, reason = True, choice.get("finish_reason") or reason
            delta = mapping(choice.get("delta"))
            for name in ("content", "reasoning_content", "reasoning", "refusal"):
                if isinstance(more := delta.get(name), str):
                    texts.setdefault(name, []).append(more)
            for number, call in enumerate(map(mapping, sequence(delta.get("tool_calls")))):
                _grow(calls, call.get("index", number), call)
    if any_choice:
        message = {name: "".join(more) for name, more in texts.items()}
        body["choices"] = [
            {"message": message | {"tool_calls": [calls[index] for index in sorted(calls)]}, "finish_reason": reason}
        ]
    return body


def _grow(calls: dict[int, dict[str, Any]], index: Any, more: dict[str, Any]) -> None:
    if not isinstance(index, int):
        return
    call = calls.setdefault(index, {"id": None, "function": {"name": None, "arguments": ""}})
    call["id"] = call["id"] or more.get("id")
    function = mapping(more.get("function"))
    call["function"]["name"] = call["function"]["name"] or function.get("name")
    if isinstance(arguments := function.get("arguments"), str):
        call["function"]["arguments"] += arguments
