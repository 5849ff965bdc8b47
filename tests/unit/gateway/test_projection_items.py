"""Every kind of item of the Responses dialect gives the rows of an import, or is counted if it gives none."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from hypaware.gateway.exchange import SseEvent
from hypaware.gateway.projection.conversation import ConversationCache
from hypaware.gateway.projection.projector import Projection, project_exchange
from hypaware.model import canonical
from hypaware.model.datasets import Row
from tests.support import exchange_samples
from tests.support.codex_rollouts import THREAD, imported, line, meta, turn

CODEX = {"user-agent": "codex_exec/0.166.0 (Debian 12)", "session-id": THREAD, "thread-id": THREAD}
PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
ASKED: dict[str, Any] = {
    "type": "message",
    "id": "msg_1",
    "role": "user",
    "content": [{"type": "input_text", "text": "What is it?"}, PICTURE],
}
DONE: dict[str, Any] = {
    "type": "message",
    "id": "msg_2",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "A dot."}, {"type": "refusal", "refusal": "No more."}],
}
UNSAID: list[dict[str, Any]] = [
    {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "dot"}},
    {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "dot"}},
    {"type": "file_search_call", "queries": ["dot"], "results": None},
    {"type": "code_interpreter_call", "code": "1 + 1", "container_id": "c"},
    {"type": "computer_call", "call_id": "cu", "action": {"type": "screenshot"}},
    {"type": "image_generation_call", "result": "AAAA"},
    {"type": "mcp_call", "name": "look", "arguments": "{}", "output": "dot", "server_label": "eyes"},
    {"type": "mcp_list_tools", "server_label": "eyes", "tools": []},
    {"type": "mcp_approval_request", "name": "look", "arguments": "{}"},
    {"type": "mcp_approval_response", "approve": True, "approval_request_id": "m"},
    {"type": "local_shell_call", "call_id": "ls", "action": {"type": "exec", "command": ["ls"]}},
    {"type": "shell_call", "call_id": "sh", "action": {"commands": ["ls"]}},
    {"type": "apply_patch_call", "call_id": "ap", "operation": {"type": "delete_file", "path": "a"}},
    {"type": "hologram"},
]
SAID: list[dict[str, Any]] = [
    {"type": "custom_tool_call", "call_id": "ct", "name": "apply_patch", "input": "*** Begin Patch"},
    {"type": "custom_tool_call_output", "call_id": "ct", "output": "ok"},
    {"type": "computer_call_output", "call_id": "cu", "output": {"type": "computer_screenshot", "file_id": "f"}},
    {"type": "local_shell_call_output", "call_id": "ls", "output": "a b"},
    {"type": "shell_call_output", "call_id": "sh", "output": [{"stdout": "a b"}]},
    {"type": "apply_patch_call_output", "call_id": "ap", "status": "completed"},
]
OUTPUT = [{**item, "id": f"item_{number}"} for number, item in enumerate((*UNSAID, *SAID))] + [DONE]
COUNTED = {f"unknown_type:{item['type']}": 1 for item in UNSAID} | {"unknown_type:web_search_call": 2}
RESPONSE = {"id": "resp_1", "status": "completed", "model": "gpt-6", "output": OUTPUT}
SHOWN = ("message_id", "role", "part_type", "provider_type", "content_text", "tool_name", "tool_call_id")


def streamed() -> list[SseEvent]:
    said: list[dict[str, Any]] = [
        {"type": "response.output_item.done", "output_index": index, "item": item} for index, item in enumerate(OUTPUT)
    ]
    said.append({"type": "response.completed", "response": {**RESPONSE, "output": []}})
    return [SseEvent(each["type"], each) for each in said]


def project(given: list[dict[str, Any]], answer: Any, seen: ConversationCache) -> Projection:
    return project_exchange(
        exchange_samples.build_exchange("/v1/responses", {"input": given}, answer, request_headers=CODEX), seen
    )


def summarize(rows: Iterable[Row]) -> list[tuple[Any, ...]]:
    return [tuple(row.get(name) for name in SHOWN) for row in rows]


def without_id(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name != "id"}


@pytest.mark.hazard(55)
@pytest.mark.parametrize("answer", [RESPONSE, streamed()], ids=["whole", "streamed"])
def test_every_kind_of_item_gives_the_same_rows_as_its_import(tmp_path: Path, answer: Any) -> None:
    rows, reading = imported(tmp_path, [meta(), turn(), *(line("response_item", each) for each in (ASKED, *OUTPUT))])
    found = project([ASKED], answer, ConversationCache())

    assert summarize(found.rows) == summarize(rows)
    assert [canonical.loads(row["tool_args"]) for row in found.rows if "tool_args" in row] == ["*** Begin Patch"]
    assert [row["message_id"] for row in rows] == ["msg_1", *(f"item_{14 + number}" for number in range(6)), "msg_2"]
    assert found.skipped == reading.skipped == {**COUNTED, "block_without_text": 2}


@pytest.mark.parametrize("keeps_ids", [True, False])
def test_an_item_without_a_row_is_counted_once_however_often_it_is_repeated(keeps_ids: bool) -> None:
    """An old client sends its items without ids; two equal ones are still two."""
    history, seen = [ASKED, *OUTPUT], ConversationCache()
    if not keeps_ids:
        history = [without_id(item) for item in history]
    project(history[:1], RESPONSE, seen)
    approved = {"type": "mcp_approval_response", "approve": False, "approval_request_id": "m2"}
    answer = {**RESPONSE, "id": "resp_2", "output": [{"type": "web_search_call", "id": "ws", "status": "completed"}]}
    second = project([*history, approved], answer, seen)

    assert second.skipped == {"unknown_type:mcp_approval_response": 1, "unknown_type:web_search_call": 1}
    assert project([*history, approved], {**answer, "output": []}, seen).skipped == {}, "the request was repeated"
    seen.rollback(second.changes)
    assert project([*history, approved], answer, seen).skipped == second.skipped, "the rows could not be stored"


def test_a_message_with_only_an_image_is_counted_and_bookkeeping_is_not() -> None:
    given: list[dict[str, Any]] = [
        {"type": "message", "role": "user", "content": [PICTURE]},
        {"type": "message", "role": "assistant", "content": []},
        {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"},
        {"type": "item_reference", "id": "msg_0"},
        {"type": "compaction", "encrypted_content": "gAAAA"},
        {"type": ["odd"]},
    ]
    assert project(given, {**RESPONSE, "output": []}, ConversationCache()).skipped == {
        "empty_content": 1,
        "unknown_type:none": 1,
    }
