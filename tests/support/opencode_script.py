"""The real OpenCode, and a provider that it is content with in each of its dialects: it has it run one command.

A prompt with DELEGATE gets a subagent first, which gets the command. `speak` is a function for `UpstreamStub`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypaware.clients.opencode.history import HISTORY
from tests.support.client_script import COMMAND, LAST_WORD
from tests.support.real_clients import Client, User, user_of
from tests.support.upstream_stub import ReceivedRequest, Responder, StubResponse, document, events

DELEGATE = "Let a subagent do it."
FIRST_WORD = "I run a command first."
MODELS = {"anthropic": "anthropic/claude-sonnet-4-5", "openai": "openai/gpt-5", "mine": "mine/one"}
"""By provider; the last one is in the config, with an address of its own."""
TOKENS = {"prompt_tokens": 12, "completion_tokens": 7, "total_tokens": 19}
OPENCODE = Client(
    "opencode",
    ("run", "-m", MODELS["mine"], "Say what the command says."),
    ("run", "--continue", "-m", MODELS["mine"], "And once more."),
    ".local/share/opencode/opencode.db",
    HISTORY,
)
_numbers = itertools.count(1)


def speak(seen: ReceivedRequest) -> StubResponse:
    path = seen.target.partition("?")[0]
    if seen.method != "POST":
        return document({"error": {"type": "not_found_error", "message": f"no {path}"}}, 404, "Not Found")
    body = json.loads(seen.body)
    number, call = next(_numbers), _choose_call(body)
    for ending, answer in (("/messages", _messages), ("/responses", _responses), ("/chat/completions", _completions)):
        if path.endswith(ending):
            return StubResponse(pieces=answer(f"{number:024d}", body["model"], call))
    return document({"error": {"type": "not_found_error", "message": f"no {path}"}}, 404, "Not Found")


def _choose_call(body: dict[str, Any]) -> tuple[str, dict[str, str]] | None:
    """Return the tool that the model calls, if the user spoke last and there is one."""
    messages = body.get("messages") or body["input"]
    last = messages[-1]
    content = last.get("content")
    is_result = isinstance(content, list) and any(block.get("type") == "tool_result" for block in content)
    if not body.get("tools") or last.get("role") != "user" or is_result:
        return None
    if DELEGATE in json.dumps(content):
        return "task", {"description": "one command", "prompt": "Do it.", "subagent_type": "general"}
    return "bash", {"command": COMMAND, "description": "says words"}


def _messages(number: str, model: str, call: tuple[str, dict[str, str]] | None) -> tuple[bytes, ...]:
    usage = {"input_tokens": 12, "output_tokens": 7}
    message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": model, "content": []}
    text = FIRST_WORD if call else LAST_WORD
    found: list[tuple[str, dict[str, object]]] = [
        ("message_start", {"message": {**message, "stop_reason": None, "usage": {**usage, "output_tokens": 1}}}),
        ("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}),
        ("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": text}}),
        ("content_block_stop", {"index": 0}),
    ]
    if call:
        block = {"type": "tool_use", "id": f"toolu_{number}", "name": call[0], "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(call[1])}
        found += [
            ("content_block_start", {"index": 1, "content_block": block}),
            ("content_block_delta", {"index": 1, "delta": delta}),
            ("content_block_stop", {"index": 1}),
        ]
    stop = {"stop_reason": "tool_use" if call else "end_turn"}
    return events(*found, ("message_delta", {"delta": stop, "usage": usage}), ("message_stop", {}))


def _responses(number: str, model: str, call: tuple[str, dict[str, str]] | None) -> tuple[bytes, ...]:
    item: dict[str, Any] = {"id": f"msg_{number}", "type": "message", "role": "assistant"}
    if call:
        item = {"id": f"fc_{number}", "type": "function_call", "call_id": f"call_{number}", "name": call[0]}
        item["arguments"] = arguments = json.dumps(call[1])
        begun = {**item, "arguments": "", "status": "in_progress"}
        delta = ("response.function_call_arguments.delta", arguments)
    else:
        begun = {**item, "content": [], "status": "in_progress"}
        item["content"] = [{"type": "output_text", "text": LAST_WORD, "annotations": []}]
        delta = ("response.output_text.delta", LAST_WORD)
    place = {"item_id": item["id"], "output_index": 0}
    response = {"id": f"resp_{number}", "object": "response", "created_at": 1, "model": model}
    done = {**item, "status": "completed"}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    usage = {"input_tokens": 12, "output_tokens": 7, "total_tokens": 19, **details}
    return events(
        ("response.created", {"response": {**response, "status": "in_progress", "output": []}}),
        ("response.output_item.added", {"output_index": 0, "item": begun}),
        (delta[0], {**place, "content_index": 0, "delta": delta[1]}),
        ("response.output_item.done", {"output_index": 0, "item": done}),
        ("response.completed", {"response": {**response, "status": "completed", "output": [done], "usage": usage}}),
    )


def _completions(number: str, model: str, call: tuple[str, dict[str, str]] | None) -> tuple[bytes, ...]:
    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        found = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": 1, "model": model}
        return f"data: {json.dumps({**found, 'choices': [choice], **more})}\n\n".encode()

    pieces = [chunk({"role": "assistant", "content": FIRST_WORD if call else LAST_WORD})]
    if call:
        function = {"name": call[0], "arguments": json.dumps(call[1])}
        tool_call = {"index": 0, "id": f"call_{number}", "type": "function", "function": function}
        pieces.append(chunk({"tool_calls": [tool_call]}))
    pieces.append(chunk({}, "tool_calls" if call else "stop", usage=TOKENS))
    return (*pieces, b"data: [DONE]\n\n")


@dataclass(frozen=True)
class OpenCodeUser(User):
    @property
    def environment(self) -> dict[str, str]:
        beside = ("XDG_", "OPENCODE")
        kept = {name: value for name, value in super().environment.items() if not name.startswith(beside)}
        own = {"OPENAI_API_KEY": "sk-nobody-issued-this", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
        # It takes its folder from there.
        return {**kept, **own, "PWD": str(self.folder / "project")}


@contextmanager
def opencode_user(tmp_path: Path, answer: Responder) -> Iterator[OpenCodeUser]:
    with user_of(OPENCODE, tmp_path, answer) as plain:
        user = OpenCodeUser(**vars(plain))
        config_path(user).parent.mkdir(parents=True)
        mine: Mapping[str, Any] = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Mine",
            "options": {"baseURL": f"{user.stub.url}/llm/v1", "apiKey": "k"},
            "models": {"one": {"name": "One"}},
        }
        # As a person writes it. If $schema is missing, the client adds it.
        settings = {"$schema": "https://opencode.ai/config.json", "provider": {"mine": mine}}
        config_path(user).write_text(json.dumps(settings, indent=3) + "\n\n")
        yield user


def config_path(user: User) -> Path:
    return user.folder / ".config/opencode/opencode.json"
