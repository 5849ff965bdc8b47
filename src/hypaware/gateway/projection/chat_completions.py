"""The Chat Completions dialect: `/v1/chat/completions`, streamed or not; `choices[0]` is the response.

Each content block becomes one part, in the table's terms: `tool_calls` (and their older form `function_call`) become
tool_use blocks of the assistant, a message of role `tool` becomes a tool_result, and spoken output becomes an `audio`
block with its transcript. The session is what the client names (`RequestReader.find_session`), else
`metadata.session_id`, else a hash of how the conversation begins.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

from hypaware.gateway.exchange import DecodedExchange, SseEvent
from hypaware.gateway.projection.responses import openai_usage
from hypaware.gateway.projection.turn import (
    ModelResponse,
    Turn,
    TurnPart,
    build_error_response,
    opening_texts,
    short_hash,
)
from hypaware.gateway.senders import identify_sender
from hypaware.model.json_values import Block, as_list, as_mapping, as_text, join_texts, parse_json, to_blocks

DIALECT = "openai_chat"
_SYSTEM_ROLES = ("system", "developer")
_TYPES_WITH_ID = ("tool_use", "audio")
_STREAMED_TEXTS = ("content", "reasoning_content", "reasoning", "refusal", "arguments", "input", "transcript")
_UNFINISHED_REASONS = ("length", "content_filter")


def read_chat_completion(decoded: DecodedExchange) -> Turn:
    body = as_mapping(decoded.request)
    messages = [as_mapping(message) for message in as_list(body.get("messages"))]
    prompts = [message for message in messages if message.get("role") in _SYSTEM_ROLES]
    others = [message for message in messages if message.get("role") not in _SYSTEM_ROLES]
    system = "\n".join(prompt for message in prompts if (prompt := join_texts(message.get("content")))) or None
    stated = as_text(as_mapping(body.get("metadata")).get("session_id"))
    sender = identify_sender(decoded, DIALECT, lambda: stated or short_hash(DIALECT, *opening_texts(system, others)))
    return Turn(
        dialect=DIALECT,
        kind=sender.facts.kind,
        session_id=sender.ids.session_id or "",
        conversation_id=sender.ids.thread_id,
        history=[part for message in others for part in _message_parts(message)],
        response=_read_response(decoded),
        agent_id=sender.facts.agent_id,
        client_name=sender.client,
        client_version=sender.version,
        system_text=system,
        tools=body.get("tools") or body.get("functions") or None,
        columns={"user_id": as_text(body.get("user")), **sender.facts.columns},
        attributes=sender.facts.attributes,
        facts=sender.facts,
    )


def _message_parts(message: dict[str, Any]) -> list[TurnPart]:
    role = as_text(message.get("role"))
    if role is None:
        return []
    if role == "tool":
        content = message.get("content")
        blocks: list[Block] = [{"type": "tool_result", "tool_use_id": message.get("tool_call_id"), "content": content}]
    else:
        blocks = [_convert_block(block) for block in to_blocks(message.get("content")) if isinstance(block, dict)]
        if reasoning := as_text(message.get("reasoning_content")) or as_text(message.get("reasoning")):
            blocks.insert(0, {"type": "thinking", "thinking": reasoning})
        if refusal := as_text(message.get("refusal")):
            blocks.append({"type": "text", "text": refusal})
        if isinstance(audio := message.get("audio"), dict):
            blocks.append({"type": "audio", "id": audio.get("id"), "text": audio.get("transcript")})
        blocks += [_convert_call(as_mapping(call)) for call in as_list(message.get("tool_calls"))]
        if isinstance(legacy := message.get("function_call"), dict):
            blocks.append(_convert_call({"function": legacy}))
    group_id = next(
        (call for block in blocks if block.get("type") == "tool_use" and (call := as_text(block.get("id")))), None
    )
    return [
        TurnPart(
            role=role,
            content=[block],
            unique_id=as_text(block.get("id" if block.get("type") in _TYPES_WITH_ID else "tool_use_id")),
            group_id=group_id,
            is_reasoning=block.get("type") == "thinking",
            block_index=index,
            provider_type=role,
        )
        for index, block in enumerate(blocks)
        if block.get("text") != ""
    ]


def _convert_block(block: Block) -> Block:
    """Convert a block of this dialect to one of the table's kinds."""
    match block.get("type"):
        case "input_text" | "output_text" | "refusal":
            return {"type": "text", "text": block.get("text") or block.get("refusal")}
        case "image_url":
            return {**block, "type": "image"}
        case _:
            return block


def _convert_call(call: dict[str, Any]) -> Block:
    function = as_mapping(call.get("function") or call.get("custom"))
    arguments = function.get("arguments", function.get("input"))
    value = parse_json(arguments)
    return {
        "type": "tool_use",
        "id": call.get("id"),
        "name": function.get("name"),
        "input": arguments if value is None else value,
    }


def _read_response(decoded: DecodedExchange) -> ModelResponse:
    body = _assemble(decoded.events) if decoded.events is not None else as_mapping(decoded.response)
    choice = as_mapping(next(iter(as_list(body.get("choices"))), None))
    reason = choice.get("finish_reason")
    message = as_mapping(choice.get("message"))
    if body.get("error") or not choice or (decoded.events is not None and reason is None):
        outcome = build_error_response(decoded, body)
    else:
        outcome = ModelResponse(
            finish_reason=reason, complete=isinstance(reason, str) and reason not in _UNFINISHED_REASONS
        )
    return replace(
        outcome,
        parts=_message_parts({"role": "assistant", **message}) if message else [],
        api_id=as_text(body.get("id")),
        model=body.get("model"),
        usage=openai_usage(body.get("usage")),
    )


def _assemble(events: tuple[SseEvent, ...]) -> dict[str, Any]:
    body: dict[str, Any] = {}
    texts = _TextAssembler()
    calls, tools = defaultdict[int, _TextAssembler](_TextAssembler), defaultdict[int, _TextAssembler](_TextAssembler)
    nested = defaultdict[str, _TextAssembler](_TextAssembler)
    reason, any_choice = None, False
    for event in events:
        chunk = as_mapping(event.data)
        body.update({name: chunk[name] for name in ("id", "model", "usage", "error") if chunk.get(name)})
        for choice in map(as_mapping, as_list(chunk.get("choices"))):
            if choice.get("index", 0) != 0:
                continue
            any_choice, reason = True, choice.get("finish_reason") or reason
            delta = as_mapping(choice.get("delta"))
            texts.add(delta)
            for number, call in enumerate(map(as_mapping, as_list(delta.get("tool_calls")))):
                if isinstance(index := call.get("index", number), int):
                    calls[index].add(call)
                    tools[index].add(as_mapping(call.get("function") or call.get("custom")))
            for name in ("function_call", "audio"):
                if isinstance(delta.get(name), dict):
                    nested[name].add(delta[name])
    if any_choice:
        message: dict[str, Any] = texts.build() | {name: fragments.build() for name, fragments in nested.items()}
        message["tool_calls"] = [calls[index].build() | {"function": tools[index].build()} for index in sorted(calls)]
        body["choices"] = [{"message": message, "finish_reason": reason}]
    return body


class _TextAssembler:
    """Texts that arrived in fragments. Of names and ids, which some providers repeat, the first value counts."""

    def __init__(self) -> None:
        self._fragments: defaultdict[str, list[str]] = defaultdict(list)

    def add(self, more: dict[str, Any]) -> None:
        for name, value in more.items():
            if value and isinstance(value, str):
                self._fragments[name].append(value)

    def build(self) -> dict[str, Any]:
        return {
            name: "".join(found) if name in _STREAMED_TEXTS else found[0] for name, found in self._fragments.items()
        }
