"""Where a session and its messages are found on the page: the path of a session, and the anchor of a message in it."""

from __future__ import annotations

from hashlib import sha256
from urllib.parse import quote

_ANCHOR_DIGITS = 16


def session_path(session_id: str) -> str:
    """Return the path of a session's view. The id can contain any characters."""
    return f"/sessions/{quote(session_id, safe='')}"


def message_anchor(message_id: str) -> str:
    """Return the id of the element that shows a message: an id that is safe in markup and addresses."""
    digest = sha256(message_id.encode("utf-8", "surrogatepass")).hexdigest()
    return f"m-{digest[:_ANCHOR_DIGITS]}"


def message_path(session_id: str, message_id: str) -> str:
    """Return the permalink of a message."""
    return f"{session_path(session_id)}#{message_anchor(message_id)}"
