"""What OpenCode states in a request beyond the dialect. It speaks all three dialects that the gateway decodes.

    x-session-id          the session; for OpenCode's own models x-opencode-session
    x-parent-session-id   the session that started it, if it is that of a subagent

The folder is in the system prompt, and so is the purpose of a request that is not part of the conversation: the prompts
that make titles and summaries are known by how they begin.
"""

from __future__ import annotations

import re

from hypaware.clients.client_requests import CallKind, ClientRequest, RequestFacts, SessionIds
from hypaware.model.json_values import as_list, as_mapping, as_text, join_texts

_FOLDER = re.compile(r"^ *Working directory: (.+)$", re.MULTILINE)
_SYSTEM_ROLES = ("system", "developer")
_TITLE = "You are a title generator."
_SUMMARIES = ("You are a context summarization agent.", "Summarize what was done in this conversation.")


class OpenCodeRequests:
    dialects = ("anthropic_messages", "openai_chat", "openai_responses")

    def find_session(self, request: ClientRequest) -> SessionIds:
        own = as_text(request.headers.get("x-session-id")) or as_text(request.headers.get("x-opencode-session"))
        parent = as_text(request.headers.get("x-parent-session-id"))
        return SessionIds(parent, own) if own and parent else SessionIds(own)

    def read(self, request: ClientRequest, ids: SessionIds) -> RequestFacts:
        system = _read_system(request)
        folder = _FOLDER.search(system)
        columns = {
            "conversation_source": "opencode",
            "cwd": folder[1].strip() if folder else None,
            "is_sidechain": True if ids.thread_id else None,
            "agent_id": ids.thread_id,
            "parent_thread_id": ids.session_id if ids.thread_id else None,
        }
        return RequestFacts(
            kind=_classify(system),
            agent_id=ids.thread_id,
            columns=columns,
            transcript_has_response_ids=False,
        )


REQUESTS = OpenCodeRequests()


def _read_system(request: ClientRequest) -> str:
    """Return the system prompt, which is in a place of its own or among the first messages."""
    body = request.body
    parts = [join_texts(body.get("system")), as_text(body.get("instructions"))]
    for message in map(as_mapping, as_list(body.get("messages") or body.get("input"))):
        if message.get("role") not in _SYSTEM_ROLES:
            break
        parts.append(join_texts(message.get("content")))
    return "\n".join(filter(None, parts))


def _classify(system: str) -> CallKind:
    """Classify a request. The database holds the text and the tokens of a summary, so it needs no row of its own."""
    if system.startswith(_TITLE):
        return CallKind.TITLE
    return CallKind.SIDE if system.startswith(_SUMMARIES) else CallKind.TURN
