"""The Responses dialect: items with and without ids; plain, streamed, truncated and failed responses."""

from __future__ import annotations

from typing import Any

import pytest

from hypaware.clients.client_requests import CallKind
from hypaware.gateway.exchange import SseEvent
from hypaware.gateway.projection.conversation import ConversationCache
from hypaware.gateway.projection.projector import project_exchange
from hypaware.model import canonical
from hypaware.model.datasets import Row
from tests.support import exchange_samples

PATH = "/backend-api/codex/responses"
CODEX = {"user-agent": "codex_exec/0.166.0 (Debian 12)", "session-id": "s", "thread-id": "t"}
ASKED = {
    "type": "message",
    "id": "msg_1",
    "role": "user",
    "content": [{"type": "input_text", "text": "List the files."}],
}
OUTPUT: list[dict[str, Any]] = [
    {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "Look first."}]},
    {"id": "msg_2", "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
    {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "shell", "arguments": '{"command": "ls"}'},
]
USAGE = {
    "input_tokens": 90,
    "input_tokens_details": {"cached_tokens": 80},
    "output_tokens": 6,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 96,
}
RESPONSE = {"id": "resp_1", "status": "completed", "model": "gpt-6", "output": OUTPUT, "usage": USAGE}
BODY = {"model": "gpt-6", "instructions": "Be kind.", "input": [ASKED]}


def streamed(*, with_output: bool) -> list[SseEvent]:
    said: list[dict[str, Any]] = [{"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}}]
    for index, item in enumerate(OUTPUT):
        begun = {**item, "summary": [], "content": [], "arguments": ""}
        said.append({"type": "response.output_item.added", "output_index": index, "item": begun})
        kind, text = _delta(item)
        said += [{"type": kind, "output_index": index, "delta": text[at : at + 4]} for at in range(0, len(text), 4)]
        said.append({"type": "response.output_item.done", "output_index": index, "item": item})
    response = RESPONSE if with_output else {**RESPONSE, "output": []}
    said.append({"type": "response.completed", "response": response})
    return [SseEvent(each["type"], each) for each in said]


def _delta(item: dict[str, Any]) -> tuple[str, str]:
    match item["type"]:
        case "reasoning":
            return "response.reasoning_summary_text.delta", item["summary"][0]["text"]
        case "message":
            return "response.output_text.delta", item["content"][0]["text"]
        case _:
            return "response.function_call_arguments.delta", item["arguments"]


def rows_of(body: Any, answer: Any, seen: ConversationCache | None = None, **more: Any) -> list[Row]:
    given = {"request_headers": CODEX, **more}
    return list(
        project_exchange(exchange_samples.build_exchange(PATH, body, answer, **given), seen or ConversationCache()).rows
    )


@pytest.mark.parametrize("with_output", [True, False])
def test_a_streamed_response_gives_the_same_rows_as_a_plain_one(with_output: bool) -> None:
    whole = rows_of(BODY, RESPONSE)

    assert rows_of(BODY, streamed(with_output=with_output)) == whole
    assert [row["message_id"] for row in whole] == ["msg_1", "rs_1", "msg_2", "fc_1"]
    assert [(row["session_id"], row["conversation_id"]) for row in whole] == [("s", "t")] * 4
    assert canonical.loads(whole[-1]["attributes"])["usage"] == {
        "input_tokens": 10,
        "output_tokens": 6,
        "cache_read_tokens": 80,
        "reasoning_tokens": 2,
        "total_tokens": 96,
    }


@pytest.mark.hazard(55)
def test_a_minimal_stream_gives_the_same_rows() -> None:
    """Other providers omit indexes, item starts and the overall status."""
    end: dict[str, Any] = {
        "type": "response.completed",
        "response": {"id": "resp_1", "usage": USAGE, "model": "gpt-6"},
    }
    done: list[dict[str, Any]] = [{"type": "response.output_item.done", "item": item} for item in OUTPUT]
    whole, bare = (
        project_exchange(exchange_samples.build_exchange("/v1/responses", BODY, answer), ConversationCache()).rows
        for answer in (RESPONSE, [SseEvent(each["type"], each) for each in (*done, end)])
    )
    assert bare == whole
    words: list[dict[str, Any]] = [{"type": "response.output_text.delta", "delta": piece} for piece in ("I ", "look.")]
    told = [SseEvent(each["type"], each) for each in (*words, end)]
    rows = project_exchange(exchange_samples.build_exchange("/v1/responses", BODY, told), ConversationCache()).rows
    assert [(row["role"], row["part_type"], row["content_text"]) for row in rows[1:]] == [
        ("assistant", "text", "I look.")
    ]
    without_role = {**RESPONSE, "output": [{name: value for name, value in OUTPUT[1].items() if name != "role"}]}
    assert (
        project_exchange(
            exchange_samples.build_exchange("/v1/responses", BODY, without_role), ConversationCache()
        ).rows[-1]["role"]
        == "assistant"
    )


def test_a_stream_truncated_anywhere_keeps_what_arrived_and_reports_the_truncation() -> None:
    events, whole = streamed(with_output=True), rows_of(BODY, RESPONSE)
    for length in range(len(events)):
        rows = rows_of(BODY, events[:length], error="upstream_cut")

        assert rows[0] == whole[0]
        assert (rows[-1]["part_type"], canonical.loads(rows[-1]["status"])["error_code"]) == ("error", "upstream_cut")
        for row, finished in zip(rows[1:-1], whole[1:], strict=False):
            assert row["message_id"] == finished["message_id"]
            assert finished.get("content_text", "").startswith(row.get("content_text", ""))


def test_ids_of_a_response_are_not_used_if_the_request_has_none() -> None:
    """An old client does not keep the ids: its next request has the same items without them."""
    seen = ConversationCache()
    asked = {name: value for name, value in ASKED.items() if name != "id"}
    first = rows_of({**BODY, "input": [asked]}, RESPONSE, seen)
    kept = [{name: value for name, value in item.items() if name != "id"} for item in OUTPUT]
    done = {"type": "function_call_output", "call_id": "call_1", "output": "a b"}
    body = {**BODY, "input": [asked, *kept, done]}
    second = rows_of(body, {**RESPONSE, "id": "resp_2", "output": [OUTPUT[1]]}, seen)

    assert [row["role"] for row in second] == ["tool", "assistant"]
    assert second[0]["tool_name"] == "shell"
    replayed = {row["part_id"] for row in rows_of(body, RESPONSE)}
    assert {row["part_id"] for row in first} <= replayed
    assert all(canonical.loads(row["attributes"])["codex"]["identity_source"] == "gateway_fallback" for row in first)


@pytest.mark.hazard(83)
@pytest.mark.parametrize("remembers", [True, False])
def test_a_client_that_only_repeats_response_ids_has_each_part_once(remembers: bool) -> None:
    """`input += response.output`, as with the provider's own library, with and without a restart in between."""
    asked = {"role": "user", "content": "List the files."}
    done = {"type": "function_call_output", "call_id": "call_1", "output": "a b"}
    outputs: list[list[dict[str, Any]]] = [OUTPUT, [{**OUTPUT[1], "id": "msg_3"}], []]
    requests = [[asked], [asked, *OUTPUT, done]]
    requests.append([*requests[1], *outputs[1], {"role": "user", "content": "Go on."}])
    seen = ConversationCache()
    rows: list[Row] = []
    for number, (given, output) in enumerate(zip(requests, outputs, strict=True)):
        answer = {**RESPONSE, "id": f"resp_{number}", "output": output}
        rows += project_exchange(
            exchange_samples.build_exchange("/v1/responses", {"input": given}, answer),
            seen if remembers else ConversationCache(),
        ).rows

    assert len({row["part_id"] for row in rows}) == 7, "two questions and five parts of responses and tools"
    assert len(rows) == 7 or not remembers


@pytest.mark.hazard(83)
def test_a_client_that_starts_to_send_ids_does_not_duplicate_parts() -> None:
    seen = ConversationCache()
    without = {name: value for name, value in ASKED.items() if name != "id"}
    rows_of({**BODY, "input": [without]}, RESPONSE, seen)
    done = {"type": "function_call_output", "call_id": "call_1", "output": "a b"}
    second = rows_of({**BODY, "input": [without, *OUTPUT, done]}, {**RESPONSE, "id": "resp_2", "output": []}, seen)

    assert [row["part_type"] for row in second] == ["tool_result"]


@pytest.mark.hazard(55)
def test_a_failed_response_becomes_a_row() -> None:
    failed = {"id": "resp_1", "status": "failed", "error": {"code": "server_error", "message": "Broken"}}
    events = [SseEvent("response.failed", {"type": "response.failed", "response": failed})]
    refused = {"error": {"type": "invalid_request_error", "message": "Bad"}}

    streamed_row, refused_row = rows_of(BODY, events)[-1], rows_of(BODY, refused, status=400)[-1]

    assert (streamed_row["content_text"], refused_row["content_text"]) == ("Broken", "Bad")
    assert canonical.loads(refused_row["status"])["error_code"] == "invalid_request_error"


def test_a_response_that_hit_the_output_limit_is_marked() -> None:
    answer = {**RESPONSE, "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}

    assert canonical.loads(rows_of(BODY, answer)[-1]["status"]) == {"finish_reason": "length"}


def test_plain_text_input_and_messages_without_a_type_are_user_messages() -> None:
    for given in ("Hello.", [{"role": "user", "content": "Hello."}]):
        first, *_ = rows_of({**BODY, "input": given}, RESPONSE, request_headers={})
        assert (first["role"], first["content_text"]) == ("user", "Hello.")


@pytest.mark.parametrize(
    ("kind", "found"), [("turn", CallKind.TURN), ("compaction", CallKind.COMPACTION), ("prewarm", CallKind.WARMUP)]
)
def test_codex_states_the_kind_of_a_call(kind: str, found: CallKind) -> None:
    headers = {**CODEX, "x-codex-turn-metadata": f'{{"request_kind":"{kind}","session_id":"s"}}'}
    projection = project_exchange(
        exchange_samples.build_exchange(PATH, BODY, RESPONSE, request_headers=headers), ConversationCache()
    )

    assert (projection.kind, bool(projection.rows)) == (found, found is CallKind.TURN)


def test_the_thread_of_a_subagent_names_its_parent() -> None:
    seen, rows = ConversationCache(), list[Row]()
    for exchange in exchange_samples.read_sample(exchange_samples.SAMPLES / "codex-0.166.0/subagent.ndjson.xz"):
        rows += project_exchange(exchange, seen).rows
    threads = {(row["conversation_id"], row.get("parent_thread_id"), row["is_sidechain"]) for row in rows}

    assert len({row["session_id"] for row in rows}) == 1
    assert sorted(sidechain for _, _, sidechain in threads) == [False, True]
    assert {parent for _, parent, sidechain in threads if sidechain} == {
        thread for thread, _, sidechain in threads if not sidechain
    }


def test_the_working_directory_is_the_one_that_the_client_states() -> None:
    """Outside of a repository no header names the folder; within one, the header names the repository's root."""
    told = [f"<environment_context>\n  <cwd>{each}</cwd>\n</environment_context>" for each in ("/a", "/a &amp; b/c")]
    moved = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": each}]} for each in told]
    metadata = '{"workspaces": {"/top": {"latest_git_commit_hash": "abc"}}}'
    headers = {**CODEX, "x-codex-turn-metadata": metadata}

    for shown, sent, folder in (
        ([*moved, ASKED], CODEX, "/a & b/c"),
        ([*moved, ASKED], headers, "/a & b/c"),
        ([ASKED], headers, "/top"),
        ([ASKED], CODEX, None),
    ):
        body = {**BODY, "input": shown}
        rows = project_exchange(
            exchange_samples.build_exchange(PATH, body, RESPONSE, request_headers=sent), ConversationCache()
        ).rows
        assert {row.get("cwd") for row in rows} == {folder}


@pytest.mark.hazard(101)
@pytest.mark.parametrize(
    ("urls", "remote"),
    [
        (
            {"fork": "https://example.com/mine", "origin": "https://me:secret@example.com/shop"},
            "https://example.com/shop",
        ),
        ({"fork": "git@example.com:mine"}, "git@example.com:mine"),
        ({"origin": 7}, None),
        (None, None),
    ],
)
def test_the_remote_of_the_repository_is_read_from_the_request(urls: Any, remote: str | None) -> None:
    workspace = {"latest_git_commit_hash": "abc", "associated_remote_urls": urls}
    metadata = canonical.dumps({"workspaces": {"/top": workspace}})
    rows = rows_of(BODY, RESPONSE, request_headers={**CODEX, "x-codex-turn-metadata": metadata})
    assert {(row["head_sha"], row.get("git_remote")) for row in rows} == {("abc", remote)}
    assert {canonical.loads(row["attributes"])["codex"].get("git_origin_url") for row in rows} == {remote}
