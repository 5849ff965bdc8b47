"""An exchange: a conversation, or a part of one, in the form that `expand` turns into rows.

Transcript parsers, the gateway and plugins build it. Values from outside are kept unchanged; `expand` checks them.
Every field is read only once, so `messages` may be a generator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, kw_only=True, eq=False)
class Message:
    """One message of an exchange. `columns` holds further columns of its rows.

    Not frozen: an import creates hundreds of thousands of these, and freezing doubles the cost of creating one.
    """

    role: Any
    content: Any
    """Text, a list of blocks, or any other value that the client wrote."""
    created_at: Any = None
    """ISO 8601, as the client wrote it."""
    message_id: str | None = None
    """The client's own id; None requests the fallback id."""
    occurrence: int | None = None
    """How many earlier messages have the same fallback id, if the caller counts them: in file order, which stays the
    same when the file grows. None lets `expand` count in the order of `messages`."""
    parent: str | None = None
    """The id at which the search in `Exchange.links` for the previous message starts."""
    fresh: bool = True
    """False if it was recorded before or is outside the window: it makes no rows, but other messages refer to it."""
    usage: Mapping[str, Any] | None = None
    """Token counts for the last part of this message; only one message of a response has them."""
    finish_reason: Any = None
    error_code: Any = None
    error_message: Any = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    provider: str
    session_id: str
    client_name: str
    messages: Iterable[Message]
    conversation_id: str | None = None
    client_version: str | None = None
    started_at: Any = None
    """The earliest time of the conversation; ISO 8601."""
    fallback_time: tuple[str, str] | None = None
    """The time of messages without one, and its origin: `file_name` or `file_mtime`."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Further columns that all its rows share."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    links: Mapping[str, str | None] | None = None
    """id → previous id, for transcript lines that make no rows. An id that is not in it is the id of a message. Without
    links, each message follows the one before it."""
