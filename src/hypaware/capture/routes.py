"""Where a request goes: by its path alone.

Claude Code and Codex both speak under `/v1`, so each has a mark, the first part of the path, which attach writes into
its base URL: `CLAUDE_BASE` (ANTHROPIC_BASE_URL), `CODEX_BASE` (base_url with an API key) or `CODEX_CHATGPT_BASE`
(with a ChatGPT login). The mark says who is calling and is taken off before anything else is decided; it never
reaches a provider. A request without a mark is welcome too; its path says whose it is.

    /claude/v1/messages              → https://api.anthropic.com/v1/messages
    /codex/v1/responses              → https://api.openai.com/v1/responses
    /codex/backend-api/codex/…       → https://chatgpt.com/backend-api/codex/…
    /v1/messages                     → https://api.anthropic.com/v1/messages

Order: the upstreams of the config, then the presets of the clients; within each group the longest prefix wins. So an
upstream with the prefix `/` takes everything, marked or not, and sees the path without the mark. Only an upstream
whose own prefix begins with a mark is asked about the path as it was written.

Paths are compared and passed on as they were written: nothing is decoded, resolved or made shorter. A prefix ends
where a part of the path ends: `/v1` is not the beginning of `/v10`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

CLAUDE_BASE = "/claude"
CODEX_BASE = "/codex/v1"
CODEX_CHATGPT_BASE = "/codex/backend-api/codex"


@dataclass(frozen=True)
class Route:
    name: str
    path_prefix: str
    base_url: str
    provider: str
    strip_prefix: bool = False
    client: str | None = None
    """Whose request it is, where the mark or the preset says so."""
    recorded: bool = True
    """False for a client that the user does not want recorded: it is served all the same."""


@dataclass(frozen=True)
class Destination:
    route: Route
    url: str
    path: str
    """With the query, as the client wrote it, but without the mark and a prefix that is stripped: as the provider's
    documents have it."""


class Upstream(Protocol):
    """What the config says of one (`config.UpstreamConfig`)."""

    @property
    def name(self) -> str: ...
    @property
    def path_prefix(self) -> str: ...
    @property
    def base_url(self) -> str: ...
    @property
    def provider(self) -> str: ...
    @property
    def strip_prefix(self) -> bool: ...


def _anthropic(prefix: str) -> Route:
    return Route("anthropic", prefix, "https://api.anthropic.com", "anthropic", client="claude")


def _openai(prefix: str) -> Route:
    return Route("openai", prefix, "https://api.openai.com", "openai", client="codex")


# The first of a client also takes what comes under its mark and fits none.
PRESETS: dict[str, tuple[Route, ...]] = {
    "claude": (_anthropic("/v1"), _anthropic("/v1/messages"), _anthropic("/api")),
    "codex": (
        _openai("/v1"),
        _openai("/v1/responses"),
        _openai("/v1/chat/completions"),
        Route("chatgpt", "/backend-api", "https://chatgpt.com", "openai", client="codex"),
    ),
}


class Routes:
    def __init__(self, upstreams: Sequence[Upstream], recorded: Collection[str] = tuple(PRESETS)) -> None:
        """`recorded`: the clients that are enabled. The others are served and leave no trace."""
        self._own = tuple(
            Route(found.name, found.path_prefix, found.base_url, found.provider or found.name, found.strip_prefix)
            for found in upstreams
        )
        self._recorded = frozenset(recorded)
        # Of two clients with the same prefix, a request without a mark is more likely from one that is recorded.
        by_likelihood = sorted(PRESETS, key=lambda client: client not in self._recorded)
        self._presets = tuple(route for client in by_likelihood for route in PRESETS[client])

    def all(self) -> tuple[Route, ...]:
        return self._own + self._presets

    def find(self, target: str) -> Destination | None:
        """For a path with its query, as it stands in the request line."""
        path, mark, query = target.partition("?")
        client, rest = _marked(path)
        route = self._written(path) if client else None
        if route is None:
            path, route = rest, _longest(self._own, rest) or self._preset(client, rest)
        if route is None:
            return None
        client = client or route.client
        route = replace(route, client=client, recorded=client is None or client in self._recorded)
        if route.strip_prefix:
            path = path[len(route.path_prefix.rstrip("/")) :]
        path = (path or "/") + mark + query
        return Destination(route, route.base_url.rstrip("/") + path, path)

    def _written(self, path: str) -> Route | None:
        return _longest([route for route in self._own if _marked(route.path_prefix)[0]], path)

    def _preset(self, client: str | None, path: str) -> Route | None:
        if client is None:
            return _longest(self._presets, path)
        return _longest(PRESETS[client], path) or PRESETS[client][0]


def _marked(path: str) -> tuple[str | None, str]:
    """Whose mark the path bears, and the path without it."""
    first, slash, rest = path[1:].partition("/")
    return (first, slash + rest or "/") if first in PRESETS else (None, path)


def _longest(routes: Sequence[Route], path: str) -> Route | None:
    fitting = [route for route in routes if _begins(path, route.path_prefix)]
    return max(fitting, key=lambda route: len(route.path_prefix), default=None)


def _begins(path: str, prefix: str) -> bool:
    prefix = prefix.rstrip("/")
    return path.startswith(prefix) and path[len(prefix) : len(prefix) + 1] in ("", "/")
