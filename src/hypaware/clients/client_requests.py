"""What the gateway has to know of a client: where its requests go, how they name it, and what they state.

`ClientTraffic` is a part of the client's declaration, so it holds values only. A `RequestReader` is code of the client:
it knows in which headers and members the client names its session, and which requests are not part of a conversation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol


class CallKind(StrEnum):
    """The purpose of a request. Only turns produce rows of their text; every request is stored raw, with its kind."""

    TURN = "turn"
    TITLE = "title"
    COUNT_TOKENS = "count_tokens"
    COMPACTION = "compaction"
    WARMUP = "warmup"
    SIDE = "side"


@dataclass(frozen=True)
class ClientUpstream:
    """An API that the client calls if it is not attached."""

    name: str
    base_url: str
    provider: str
    """Whose dialect it speaks, for example anthropic or openai."""
    path_prefixes: tuple[str, ...]
    """Requests under these paths are for it."""


@dataclass(frozen=True)
class ClientTraffic:
    upstreams: tuple[ClientUpstream, ...] = ()
    """The first one also gets requests whose path belongs to none of them. Empty if only attach knows them."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """What a path begins with in a base URL that attach writes → what it begins with at the provider."""
    user_agents: tuple[str, ...] = ()
    """The product in the user agent of its requests; a `*` at the end stands for any ending."""
    session_headers: tuple[str, ...] = ()
    """Headers that name the session, in lower case. Their values are stored."""
    recorded_headers: tuple[str, ...] = ()
    """Other headers of its own whose values are stored, in lower case; those of all others are masked."""


@dataclass(frozen=True)
class ClientRequest:
    """A request to a model, as it passed the gateway."""

    dialect: str
    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: Mapping[str, Any]
    remarks: Sequence[str] = ()
    """The words in parentheses after the product in its user agent."""


@dataclass(frozen=True)
class SessionIds:
    session_id: str | None = None
    thread_id: str | None = None


@dataclass(frozen=True)
class RequestFacts:
    """What a request of the client states beyond the dialect."""

    kind: CallKind = CallKind.TURN
    agent_id: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Attributes of the row by group; a client has a group of its own name."""
    has_item_ids: bool = False
    """The client sends its own ids of items, though perhaps not of all."""
    main_thread_is_session: bool = False
    """The main thread of a session has the session's id."""
    transcript_has_context: bool = False
    """The client's transcript also holds the context that it adds to a request, if it sends no ids of items."""
    transcript_has_response_ids: bool = True
    """The client's transcript holds the id of a response, if it holds that of any in this dialect."""
    forks_keep_session_ids: bool = False
    """In the transcript of a fork, messages keep the id of the session that they come from."""


class RequestReader(Protocol):
    @property
    def dialects(self) -> tuple[str, ...]:
        """The dialects of its requests."""

    def find_session(self, request: ClientRequest) -> SessionIds:
        """Return the session and thread that the request names, no matter which client sent it."""

    def read(self, request: ClientRequest, ids: SessionIds) -> RequestFacts:
        """Return what else a request of this client states; `ids` identify its session, if need be by a hash."""
