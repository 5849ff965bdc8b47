"""Parts of a conversation as the gateway records them, without the client's ids, and as the transcript does."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

_BEGIN = datetime(2026, 11, 15, 7, 0, tzinfo=UTC)


@dataclass(frozen=True)
class Part:
    number: int
    """Position in the conversation, and time in minutes."""
    kind: str = "user"
    """A `user` part is matched by its text, an `answer` by its API id, a `call` by its own id."""
    text: str | None = None
    session: str = "session-1"
    cwd: str = "/srv/shop"

    def live(self, *, late: bool = False, **columns: Any) -> dict[str, Any]:
        gateway: dict[str, Any] = {"source": "live", "identity_source": "gateway_fallback", "exchange_id": "e1"}
        if late:
            gateway["time_source"] = "request"
        at = _BEGIN + timedelta(minutes=self.number, seconds=5, days=3 if late else 0)
        return {**self._row(f"live-{self.number}", at), "attributes": {"gateway": gateway}, **columns}

    def shown(self, *, late: bool = False, **columns: Any) -> dict[str, Any]:
        """Return the live row of a client that sends its ids; `late` if only the history of a request has it."""
        gateway: dict[str, Any] = {"source": "live", "exchange_id": "e2"}
        if late:
            gateway["time_source"] = "request"
        at = _BEGIN + timedelta(minutes=self.number, seconds=5, days=3 if late else 0)
        return {**self._row(self.native_id, at), "attributes": {"gateway": gateway}, **columns}

    def native(self, **columns: Any) -> dict[str, Any]:
        at = _BEGIN + timedelta(minutes=self.number)
        facts = {"cwd": self.cwd, "git_branch": "main", "provider_uuid": self.native_id}
        return {**self._row(self.native_id, at), "attributes": {"claude": {"version": "2"}}, **facts, **columns}

    @property
    def native_id(self) -> str:
        return f"native-{self.number}"

    def _row(self, message_id: str, at: datetime) -> dict[str, Any]:
        row: dict[str, Any] = {
            "session_id": self.session,
            "provider": "anthropic",
            "client_name": "claude",
            "conversation_started_at": _BEGIN.isoformat(),
            "message_id": message_id,
            "message_index": self.number,
            "message_created_at": at.isoformat(),
            "role": "user" if self.kind == "user" else "assistant",
            "part_index": 0,
            "part_type": "text",
            "content_text": self.text if self.text is not None else f"text of {self.number}",
        }
        if self.kind == "call":
            row |= {"part_type": "tool_call", "tool_name": "Bash", "tool_call_id": f"call-{self.number}"}
        if self.kind == "answer":
            row["raw_frame"] = {"type": "assistant", "message_id": f"msg-{self.number}"}
        return row
