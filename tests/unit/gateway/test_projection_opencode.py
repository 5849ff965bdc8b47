"""What OpenCode's requests state, in each of its dialects, as the real client sent them (1.18.33)."""

from __future__ import annotations

from typing import Any

import pytest

from hypaware.gateway import senders
from hypaware.gateway.projection.conversation import ConversationCache
from hypaware.gateway.projection.projector import Projection, project_exchange
from hypaware.model.match_keys import list_match_keys
from hypaware.privacy.redact import redact_headers
from tests.support import exchange_samples

SYSTEM = """\
You are OpenCode, the best coding agent on the planet.
<env>
  Working directory: /home/dev/shop
  Workspace root folder: /home/dev/shop
</env>"""
TITLE = "You are a title generator. You output ONLY a thread title. Nothing else."
SUMMARY = "You are a context summarization agent. You are given a conversation between a user and an agent."
CHAT = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi."}, "finish_reason": "stop"}]}
ITEM = {"id": "m1", "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi."}]}
USER = {"role": "user", "content": [{"type": "text", "text": "Say hi."}]}
DIALECTS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "anthropic": (
        "/v1/messages",
        lambda system: {"system": [{"type": "text", "text": system}], "messages": [USER]},
        {"id": "msg_1", "role": "assistant", "content": [{"type": "text", "text": "Hi."}], "stop_reason": "end_turn"},
    ),
    "chat": (
        "/llm/v1/chat/completions",
        lambda system: {"messages": [{"role": "system", "content": system}, USER]},
        {"id": "chatcmpl-1", **CHAT},
    ),
    "responses": (
        "/v1/responses",
        lambda system: {"input": [{"role": "developer", "content": system}, USER]},
        {"id": "resp_1", "status": "completed", "output": [ITEM]},
    ),
}


def project(dialect: str, system: str = SYSTEM, **headers: str) -> Projection:
    path, build, answer = DIALECTS[dialect]
    agent = "opencode/1.18.33 ai-sdk/provider-utils/4.0.46 runtime/bun/1.3.2"
    sent = redact_headers({"User-Agent": agent, **headers}, senders.list_recorded_headers())
    exchange = exchange_samples.build_exchange(path, {"model": "m", **build(system)}, answer, request_headers=sent)
    return project_exchange(exchange, ConversationCache())


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_session_and_the_folder_are_read(dialect: str) -> None:
    found = project(dialect, **{"x-session-id": "ses_1", "x-session-affinity": "ses_1"})

    assert (found.session_id, found.client_name, found.kind) == ("ses_1", "opencode", "turn")
    said = [row for row in found.rows if row["role"] != "developer"]
    assert [(row["role"], row["content_text"]) for row in said] == [("user", "Say hi."), ("assistant", "Hi.")]
    for row in found.rows:
        assert (row["cwd"], row["conversation_source"], row["client_version"]) == (
            "/home/dev/shop",
            "opencode",
            "1.18.33",
        )


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_subagent_is_a_thread_of_its_parents_session(dialect: str) -> None:
    found = project(dialect, **{"x-session-id": "ses_2", "x-parent-session-id": "ses_1"})

    assert found.session_id == "ses_1"
    for row in found.rows:
        assert (row["conversation_id"], row["agent_id"], row["is_sidechain"]) == ("ses_2", "ses_2", True)
        assert row["parent_thread_id"] == "ses_1"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_its_database_has_no_id_of_a_response_so_rows_match_by_their_text(dialect: str) -> None:
    found = project(dialect, **{"x-session-id": "ses_1"})
    native = {"role": "assistant", "part_type": "text", "content_text": "Hi.", "attributes": {}}

    (answer,) = [row for row in found.rows if row["role"] == "assistant"]
    assert set(list_match_keys(answer)) & set(list_match_keys(native))


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("system", "kind"), [(TITLE, "title"), (SUMMARY, "side")])
def test_titles_and_summaries_make_no_rows(dialect: str, system: str, kind: str) -> None:
    found = project(dialect, system, **{"x-session-id": "ses_1"})

    assert (found.kind, found.rows) == (kind, ())


def test_its_own_models_name_the_session_in_another_header() -> None:
    assert project("chat", **{"x-opencode-session": "ses_1"}).session_id == "ses_1"
