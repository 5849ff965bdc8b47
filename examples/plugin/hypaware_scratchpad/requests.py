"""What Scratchpad states in its requests, which have the dialect of OpenAI's Chat Completions."""

from __future__ import annotations

from hypaware.clients.client_requests import CallKind, ClientRequest, RequestFacts, SessionIds


class ScratchpadRequests:
    dialects = ("openai_chat",)

    def find_session(self, request: ClientRequest) -> SessionIds:
        return SessionIds(request.headers.get("x-scratchpad-session"))

    def read(self, request: ClientRequest, ids: SessionIds) -> RequestFacts:
        """Return what else a request states. A request for a title is no part of the conversation."""
        is_title = request.headers.get("x-scratchpad-purpose") == "title"
        return RequestFacts(
            kind=CallKind.TITLE if is_title else CallKind.TURN, columns={"conversation_source": "scratchpad"}
        )


REQUESTS = ScratchpadRequests()
