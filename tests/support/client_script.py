"""A provider that real clients are content with: it has them run one command, then it says its last word.

`Script.answer` is a function for `UpstreamStub`. What is no conversation (a title, a token count, models) gets a short
answer of its own kind. Every answer has an id of its own, as a provider's have.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from backports import zstd

from tests.support.upstream_stub import JSON, ReceivedRequest, StubResponse, document, events

COMMAND = "echo words of the tool"
LAST_WORD = "That was all, and it went well."
WHOLE_TOKENS, BEGUN_TOKENS = 7, 1
"""Output tokens of a whole answer, and of one of which only the beginning arrived."""
_USAGE = {"input_tokens": 12, "output_tokens": WHOLE_TOKENS}


class Script:
    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def answer(self, seen: ReceivedRequest) -> StubResponse:
        path = seen.target.partition("?")[0]
        if seen.header("upgrade"):
            return document({"error": {"message": "no WebSocket"}}, 426, "Upgrade Required")
        if seen.method == "HEAD":
            return StubResponse(headers=JSON, framing="none")
        if path.endswith("/count_tokens"):
            return document({"input_tokens": 12})
        if path.endswith("/models"):
            return document({"data": [], "models": [], "has_more": False})
        if path.endswith("/v1/messages"):
            return self._claude(_document(seen))
        if path.endswith("/responses"):
            return self._codex(_document(seen))
        return document({"error": {"type": "not_found_error", "message": f"no {path}"}}, 404, "Not Found")

    def _claude(self, body: dict[str, Any]) -> StubResponse:
        blocks: list[dict[str, Any]] = [{"type": "text", "text": LAST_WORD}]
        stop = "end_turn"
        if any(tool.get("name") == "Bash" for tool in body.get("tools", ())) and _asks(body["messages"][-1]):
            call = {"type": "tool_use", "id": f"toolu_{self._id()}", "name": "Bash", "input": {"command": COMMAND}}
            blocks, stop = [{"type": "text", "text": "I run a command first."}, call], "tool_use"
        message = {"id": f"msg_{self._id()}", "type": "message", "role": "assistant", "model": body["model"]}
        if not body.get("stream"):
            return document({**message, "content": blocks, "stop_reason": stop, "usage": _USAGE})
        start = {**message, "content": [], "stop_reason": None, "usage": {**_USAGE, "output_tokens": BEGUN_TOKENS}}
        return StubResponse(
            pieces=events(
                ("message_start", {"message": start}),
                *(event for index, block in enumerate(blocks) for event in _claude_block(index, block)),
                ("message_delta", {"delta": {"stop_reason": stop}, "usage": _USAGE}),
                ("message_stop", {}),
            )
        )

    def _codex(self, body: dict[str, Any]) -> StubResponse:
        last = body["input"][-1]
        said: dict[str, Any] = {
            "id": f"msg_{self._id()}",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": LAST_WORD, "annotations": []}],
        }
        if not str(last.get("type")).endswith("_call_output"):
            said = {
                "id": f"ctc_{self._id()}",
                "type": "custom_tool_call",
                "status": "completed",
                "call_id": f"call_{self._id()}",
                "name": "exec",
                "input": f"const r = await tools.exec_command({{cmd: {json.dumps(COMMAND)}}});\ntext(r.output);\n",
            }
        response = {"id": f"resp_{self._id()}", "object": "response", "model": body["model"]}
        begun = {name: value for name, value in said.items() if name not in ("content", "input")}
        begun["status"] = "in_progress"
        begun |= {name: type(said[name])() for name in ("content", "input") if name in said}
        return StubResponse(
            pieces=events(
                ("response.created", {"response": {**response, "status": "in_progress", "output": []}}),
                ("response.output_item.added", {"output_index": 0, "item": begun}),
                ("response.output_item.done", {"output_index": 0, "item": said}),
                (
                    "response.completed",
                    {
                        "response": {
                            **response,
                            "status": "completed",
                            "output": [said],
                            "usage": {**_USAGE, "total_tokens": sum(_USAGE.values())},
                        }
                    },
                ),
            )
        )

    def _id(self) -> str:
        return f"{next(self._numbers):024d}"


def _document(seen: ReceivedRequest) -> dict[str, Any]:
    body = zstd.decompress(seen.body) if seen.header("content-encoding") == "zstd" else seen.body
    return dict(json.loads(body))


def _asks(message: dict[str, Any]) -> bool:
    """Whether the user speaks, and not a tool."""
    content = message["content"]
    return isinstance(content, str) or not any(block.get("type") == "tool_result" for block in content)


def _claude_block(index: int, block: dict[str, Any]) -> Iterator[tuple[str, dict[str, object]]]:
    is_text = block["type"] == "text"
    empty = {**block, "text": ""} if is_text else {**block, "input": {}}
    yield "content_block_start", {"index": index, "content_block": empty}
    if is_text:
        deltas = [{"type": "text_delta", "text": word} for word in (block["text"][:7], block["text"][7:])]
    else:
        deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
    for delta in deltas:
        yield "content_block_delta", {"index": index, "delta": delta}
    yield "content_block_stop", {"index": index}
