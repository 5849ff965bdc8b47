"""An exchange: a conversation, or a piece of one, in the one shape that `expand` turns into rows.

Whoever saw the conversation fills it in: a transcript's parser, the live gateway, a plugin. Values that come from
outside stay as they came; `expand` judges them. Nothing here is read twice, so `messages` may be made as it goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, kw_only=True, eq=False)
class Message:
    """One message of an exchange. `columns` are further columns of the table, as they shall stand in its rows.

    Not frozen: there are hundreds of thousands in an import, and freezing doubles what it takes to make one.
    """

    role: Any
    content: Any
    """Text, a list of blocks, or whatever the client wrote in their place."""
    created_at: Any = None
    """ISO 8601, as the client wrote it."""
    message_id: str | None = None
    """The client's own id; None asks for the fallback identity."""
    occurrence: int | None = None
    """How many messages with the same fallback identity stand before this one, where the maker counts them: in the
    order of the file, which does not change when it grows. None lets `expand` count in the order of `messages`."""
    parent: str | None = None
    """Where `links` leads on from this message; only with `Exchange.links`."""
    fresh: bool = True
    """False: it was recorded before, or lies outside the window. It makes no rows and is there for the others."""
    usage: Mapping[str, Any] | None = None
    """Token counts for the last part of this message. Only one message of a response has them."""
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
    """A time for what has none, and where it is from: `file_name` or `file_mtime`."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Further columns that all its rows share."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    links: Mapping[str, str | None] | None = None
    """id → the id before it, of what makes no rows; an id that it does not know is taken as a message's. Without
    links, a message follows the one before it."""
