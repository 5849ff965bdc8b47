"""What Claude Code states in a request of the Anthropic dialect beyond the conversation.

The session is in `metadata.user_id` (JSON with `session_id`, or `…_session_<id>`), else in x-claude-code-session-id.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hypaware.clients.client_requests import CallKind, ClientRequest, RequestFacts, SessionIds
from hypaware.model.json_values import as_list, as_mapping, as_text, join_texts, parse_json

_SUMMARY_TASK = "Your task is to create a detailed summary of the conversation"
_SUMMARY_PROMPTS = (_SUMMARY_TASK, "CRITICAL: Respond with TEXT ONLY")
_TITLE_SYSTEM_MARKERS = ("You are naming a coding session", "Summarize this coding conversation in under 50 characters")
_TITLE_PROMPT_MARKERS = ("title for the following conversation", "<session>\n")
_SIDE_MARKERS = (
    "Extract any file paths that this command reads or modifies",
    "You are an expert at analyzing git history",
    "Your task is to process Bash commands",
    "Analyze if this message indicates a new conversation topic",
)
_LEGACY_USER_ID = re.compile(r"_session_([0-9A-Za-z-]{8,64})$")
_SESSION_HEADER = "x-claude-code-session-id"


class ClaudeRequests:
    dialects = ("anthropic_messages",)

    def find_session(self, request: ClientRequest) -> SessionIds:
        user_id = as_mapping(request.body.get("metadata")).get("user_id")
        legacy = _LEGACY_USER_ID.search(user_id) if isinstance(user_id, str) else None
        return SessionIds(
            as_text(as_mapping(parse_json(user_id)).get("session_id"))
            or (legacy.group(1) if legacy else None)
            or as_text(request.headers.get(_SESSION_HEADER))
        )

    def read(self, request: ClientRequest, ids: SessionIds) -> RequestFacts:
        agent_id = as_text(request.headers.get("x-claude-code-agent-id"))
        # Only versions that send the session id as a header also send the agent id as one.
        sends_agent_ids = agent_id is not None or _SESSION_HEADER in request.headers
        user_type, entrypoint = (*request.remarks, None, None)[:2]  # "(external, sdk-cli)"
        return RequestFacts(
            kind=_classify_call(request.body),
            agent_id=agent_id,
            columns={
                "conversation_source": "claude",
                "agent_id": agent_id,
                "is_sidechain": (agent_id is not None) if sends_agent_ids else None,
                "user_type": user_type,
                "entrypoint": entrypoint,
            },
            forks_keep_session_ids=True,
        )


REQUESTS = ClaudeRequests()


def _classify_call(body: Mapping[str, Any]) -> CallKind:
    """Classify a request; titles, warm-ups and summaries are not part of the conversation.

    They share the session's id and often its text. The raw exchange holds their kind and cost. A request is classified
    only by a marker that the client is known to send. Any other request counts as a turn, so that no guess ever drops
    what a user said.
    """
    messages = as_list(body.get("messages"))
    content = as_mapping(messages[-1]).get("content") if messages else None
    blocks = [{"text": content}] if isinstance(content, str) else as_list(content)
    texts = (as_mapping(block).get("text") for block in reversed(blocks))
    prompt = next((each for each in texts if isinstance(each, str)), "")
    if prompt.startswith(_SUMMARY_PROMPTS) and _SUMMARY_TASK in prompt:
        return CallKind.COMPACTION
    if body.get("tools") or len(messages) != 1:
        return CallKind.TURN
    if prompt == "Warmup":
        return CallKind.WARMUP
    system = join_texts(body.get("system")) or ""
    is_title = any(marker in system for marker in _TITLE_SYSTEM_MARKERS)
    if is_title or any(marker in prompt for marker in _TITLE_PROMPT_MARKERS):
        return CallKind.TITLE
    is_quota_check = prompt == "quota" and body.get("max_tokens") == 1
    return CallKind.SIDE if is_quota_check or any(marker in system for marker in _SIDE_MARKERS) else CallKind.TURN
