"""Routes: the upstream of a request, chosen by its path alone.

Claude Code and Codex both use paths under `/v1`, so each has a mark, the first segment of the path, which attach writes
into its base URL: `CLAUDE_BASE` (ANTHROPIC_BASE_URL), `CODEX_BASE` (base_url with an API key) or `CODEX_CHATGPT_BASE`
(with a ChatGPT login). The mark identifies the client and is removed before routing; providers never see it. A request
without a mark is accepted too, and its path decides.

    /claude/v1/messages              → https://api.anthropic.com/v1/messages
    /codex/v1/responses              → https://api.openai.com/v1/responses
    /codex/backend-api/codex/…       → https://chatgpt.com/backend-api/codex/…
    /v1/messages                     → https://api.anthropic.com/v1/messages

The upstreams of the config come first, then the clients' presets; within each group the longest prefix wins. An
upstream with the prefix `/` therefore takes every request, marked or not, and sees the path without the mark. Only an
upstream whose own prefix begins with a mark is compared with the path as written.

Paths are compared and forwarded as written, without decoding or normalization. A prefix must end at a segment boundary:
`/v1` is not a prefix of `/v10`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from hypaware.clients.attach import left_upstream_path
from hypaware.home import Home

_DETACHED_SECONDS = 7 * 86_400.0
_PROVIDERS = {"claude": "anthropic", "codex": "openai"}


@dataclass(frozen=True)
class Route:
    name: str
    path_prefix: str
    base_url: str
    provider: str
    strip_prefix: bool = False
    client: str | None = None
    """The client, if the mark or the preset names one."""
    recorded: bool = True
    """False for a client that the user does not want to record; it is still served."""


@dataclass(frozen=True)
class RouteMatch:
    route: Route
    url: str
    path: str
    """With the query, as the client sent it, but without the mark and a stripped prefix: the provider's own path."""


class Upstream(Protocol):
    """An upstream in the config (`config.UpstreamConfig`)."""

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


# The first route of a client is also the default for paths under its mark.
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
        """`recorded` names the enabled clients. Other clients are served but not recorded."""
        self._configured = tuple(
            Route(
                upstream.name,
                upstream.path_prefix,
                upstream.base_url,
                upstream.provider or upstream.name,
                upstream.strip_prefix,
            )
            for upstream in upstreams
        )
        self._recorded = frozenset(recorded)
        # If two clients share a prefix, a request without a mark more likely comes from a recorded one.
        by_likelihood = sorted(PRESETS, key=lambda client: client not in self._recorded)
        self._presets = tuple(route for client in by_likelihood for route in PRESETS[client])

    def all(self) -> tuple[Route, ...]:
        return self._configured + self._presets

    def find(self, target: str) -> RouteMatch | None:
        """Return the match for a request target: a path with its query."""
        path, separator, query = target.partition("?")
        client, rest = _split_mark(path)
        route = None
        if client:
            route = _longest_match([each for each in self._configured if _split_mark(each.path_prefix)[0]], path)
        if route is None:
            path, route = rest, _longest_match(self._configured, rest)
        if route is None:
            route = _longest_match(PRESETS[client] if client else self._presets, rest)
        if route is None and client:
            route = PRESETS[client][0]
        if route is None:
            return None
        client = client or route.client
        route = replace(route, client=client, recorded=client is None or client in self._recorded)
        if route.strip_prefix:
            path = path[len(route.path_prefix.rstrip("/")) :]
        path = (path or "/") + separator + query
        return RouteMatch(route, route.base_url.rstrip("/") + path, path)


def _split_mark(path: str) -> tuple[str | None, str]:
    """Return the client whose mark the path has, and the path without it."""
    first, slash, rest = path[1:].partition("/")
    return (first, slash + rest or "/") if first in PRESETS else (None, path)


def _longest_match(routes: Sequence[Route], path: str) -> Route | None:
    # A prefix ends at a segment boundary.
    matches = [route for route in routes if f"{path}/".startswith(f"{route.path_prefix.rstrip('/')}/")]
    return max(matches, key=lambda route: len(route.path_prefix), default=None)


def read_custom_upstreams(home: Home) -> tuple[Route, ...]:
    """Return the upstreams to which attached clients sent their requests before, if that was the user's own proxy.

    They come from the records of attach and precede the presets. After a detach they stay valid for a week, because
    open sessions keep the gateway's address and use keys that only the user's proxy may see.
    """
    upstreams = []
    for folder in sorted((home.root / "clients").glob("*")):
        try:
            record = json.loads(_upstream_file(folder).read_bytes())
            client, upstream = record["client"], record["upstream"]
            if upstream:
                upstreams.append(
                    Route(
                        f"{client}-own",
                        upstream["path_prefix"],
                        upstream["base_url"],
                        _PROVIDERS.get(client, client),
                        strip_prefix=True,
                    )
                )
        except (OSError, ValueError, KeyError, TypeError):
            # Without a readable record the client's preset applies.
            continue
    return tuple(upstreams)


def _upstream_file(folder: Path) -> Path:
    record = folder / "attach.json"
    left = left_upstream_path(record)
    if not record.exists() and left.is_file() and time.time() - left.stat().st_mtime < _DETACHED_SECONDS:
        return left
    return record


def has_attached_client(home: Home) -> bool:
    """Return whether any client is attached to the gateway."""
    return any((home.root / "clients").glob("*/attach.json"))
