"""Routes: the upstream of a request, chosen by its path alone, and how to reach it.

Clients use the same paths, such as those under `/v1`, so each has a mark, its name as the first segment of the path,
which attach writes into its base URL. The mark identifies the client and is removed before routing; providers never see
it. A request without a mark is accepted too, and its path decides. What a client declares (`ClientTraffic`) gives its
upstreams, and aliases for paths under its mark. With those of Claude Code and Codex:

    /claude/v1/messages              → https://api.anthropic.com/v1/messages
    /codex/v1/responses              → https://api.openai.com/v1/responses
    /codex/chatgpt/codex/…           → https://chatgpt.com/backend-api/codex/…
    /v1/messages                     → https://api.anthropic.com/v1/messages

The upstreams of the config come first, then the clients' presets; within each group the longest prefix wins. An
upstream with the prefix `/` therefore takes every request, marked or not, and sees the path without the mark. Only an
upstream whose own prefix begins with a mark is compared with the path as written.

Paths are compared and forwarded as written, without decoding or normalization. A prefix must end at a segment boundary:
`/v1` is not a prefix of `/v10`.

A request that a web page may have sent is refused: a browser names the page in `Origin` and `Sec-Fetch-Site`, and a
page whose name resolves to this machine names itself in `Host`. Addresses, `localhost` and `gateway.allowed_hosts` are
accepted as hosts. Clients that are not browsers send neither header, and the host of their base URL.

A base URL with a user or a password is used without them: the gateway would add them to requests of any local program.

Upstreams are verified against the system's authorities and those in the file that SSL_CERT_FILE names. HTTPS_PROXY,
HTTP_PROXY, ALL_PROXY and NO_PROXY apply, because a machine behind a proxy has no other way out; loopback addresses
never use a proxy.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import ssl
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from hypaware.clients.attach import left_upstream_path, parse_upstreams
from hypaware.errors import NotReady
from hypaware.gateway.senders import list_traffic
from hypaware.home import Home

if TYPE_CHECKING:
    from hypaware.config import UpstreamConfig

CONNECT_SECONDS = 20.0
_DETACHED_SECONDS = 7 * 86_400.0


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


@cache
def list_presets() -> Mapping[str, tuple[Route, ...]]:
    """Return the routes to the own upstreams of each client; the first one is also the default under its mark."""
    return {
        client: tuple(
            Route(each.name, prefix, each.base_url, each.provider, client=client)
            for each in traffic.upstreams
            for prefix in each.path_prefixes
        )
        for client, traffic in list_traffic().items()
    }


class Routes:
    def __init__(
        self,
        upstreams: Sequence[UpstreamConfig | Route],
        recorded: Collection[str] | None = None,
        allowed_hosts: Collection[str] = (),
    ) -> None:
        """`recorded` names the enabled clients, None all of them. Other clients are served but not recorded."""
        self._own = list_presets()
        self._configured = tuple(
            Route(
                each.name,
                each.path_prefix,
                _without_user(each.base_url),
                each.provider or each.name,
                each.strip_prefix,
            )
            for each in upstreams
        )
        self._allowed_hosts = frozenset(allowed_hosts)
        self._recorded = frozenset(self._own if recorded is None else recorded)
        # If two clients share a prefix, a request without a mark more likely comes from a recorded one.
        by_likelihood = sorted(self._own, key=lambda client: client not in self._recorded)
        self._presets = tuple(route for client in by_likelihood for route in self._own[client])

    def all(self) -> tuple[Route, ...]:
        return self._configured + self._presets

    def find_refusal(self, headers: Iterable[tuple[str, str]]) -> str | None:
        """Return the kind of error for a request that a web page may have sent, or None."""
        sent = [(name.lower(), value.strip().lower()) for name, value in headers]
        hosts = [value for name, value in sent if name == "host"]
        if not all(self._is_own_host(host) for host in hosts):
            return "foreign_host"
        own_origins = {f"{scheme}://{host}" for scheme in ("http", "https") for host in hosts}
        is_foreign = any(
            (name == "origin" and value not in own_origins)
            or (name == "sec-fetch-site" and value not in ("none", "same-origin"))
            for name, value in sent
        )
        return "cross_site" if is_foreign else None

    def _is_own_host(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
            if is_loopback(name) or name in self._allowed_hosts:
                return True
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def find(self, target: str) -> RouteMatch | None:
        """Return the match for a request target: a path with its query."""
        path, separator, query = target.partition("?")
        client, rest = _split_mark(path)
        marked = [each for each in self._configured if _split_mark(each.path_prefix)[0]] if client else []
        route = _longest_match(marked, path)
        if route is None:
            path, route = rest, _longest_match(self._configured, rest)
        if route is None:
            route = _longest_match(self._own[client] if client else self._presets, rest)
        if route is None and client:
            route = next(iter(self._own[client]), None)
        if route is None:
            return None
        client = client or route.client
        route = replace(route, client=client, recorded=client is None or client in self._recorded)
        if route.strip_prefix:
            path = path[len(route.path_prefix.rstrip("/")) :]
        path = (path or "/") + separator + query
        return RouteMatch(route, route.base_url.rstrip("/") + path, path)


def _without_user(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl() if "@" in parts.netloc else url


def _split_mark(path: str) -> tuple[str | None, str]:
    """Return the client whose mark the path has, and the path without it."""
    first, slash, rest = path[1:].partition("/")
    traffic = list_traffic().get(first)
    if traffic is None:
        return None, path
    path = slash + rest or "/"
    for alias, beginning in traffic.aliases.items():
        if path.startswith(alias):
            return first, beginning + path.removeprefix(alias)
    return first, path


def _longest_match(routes: Sequence[Route], path: str) -> Route | None:
    # A prefix ends at a segment boundary.
    matches = [route for route in routes if f"{path}/".startswith(f"{route.path_prefix.rstrip('/')}/")]
    return max(matches, key=lambda route: len(route.path_prefix), default=None)


def read_custom_upstreams(home: Home) -> tuple[Route, ...]:
    """Return the upstreams to which attached clients sent their requests before, if that was the user's own proxy.

    They come from the records of attach and precede the presets. After a detach they stay valid for a week, because
    open sessions keep the gateway's address and use keys that only the user's proxy may see.
    """
    upstreams: list[Route] = []
    for folder in sorted((home.root / "clients").glob("*")):
        try:
            path = folder / "attach.json"
            left = left_upstream_path(path)
            if not path.exists() and left.is_file() and time.time() - left.stat().st_mtime < _DETACHED_SECONDS:
                path = left
            record = json.loads(path.read_bytes())
            client, own = record["client"], list_presets().get(record["client"])
            default = own[0].provider if own else client
            upstreams += [
                Route(f"{client}-own", each.path_prefix, each.base_url, each.provider or default, strip_prefix=True)
                for each in parse_upstreams(record)
            ]
        except (OSError, ValueError, KeyError, TypeError):
            # Without a readable record the client's preset applies.
            continue
    return tuple(upstreams)


def has_attached_client(home: Home) -> bool:
    return any((home.root / "clients").glob("*/attach.json"))


@dataclass(frozen=True)
class OutboundProxy:
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)


def build_tls_context(environment: Mapping[str, str], *, tolerant: bool = False) -> ssl.SSLContext:
    """Build the TLS context for upstreams. With `tolerant`, an unreadable SSL_CERT_FILE is skipped."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    extra = environment.get("SSL_CERT_FILE")
    if extra:
        # OpenSSL lets the variable replace the system's certificates; here it adds to them.
        system = Path(ssl.get_default_verify_paths().openssl_cafile)
        if system.is_file():
            context.load_verify_locations(system)
        try:
            context.load_verify_locations(extra)
        except OSError as error:
            if not tolerant:
                raise NotReady(f"SSL_CERT_FILE names {extra}, which contains no certificates: {error}") from None
    return context


def find_proxy(url: str, environment: Mapping[str, str]) -> OutboundProxy | None:
    parts = urlsplit(url)
    host = parts.hostname or ""
    value = _read_variable(environment, f"{parts.scheme}_proxy") or _read_variable(environment, "all_proxy")
    exceptions = [name.strip().lower() for name in _read_variable(environment, "no_proxy").split(",")]
    if not value or is_loopback(host) or "*" in exceptions:
        return None
    names = [name.lstrip("*").lstrip(".") for name in exceptions]
    if any(name and (host == name or host.endswith(f".{name}")) for name in names):
        return None
    proxy = urlsplit(value if "://" in value else f"http://{value}")
    if proxy.username is None:
        return OutboundProxy(proxy.geturl())
    secret = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
    address = proxy._replace(netloc=proxy.netloc.rpartition("@")[2]).geturl()
    return OutboundProxy(address, {"Proxy-Authorization": f"Basic {base64.b64encode(secret).decode()}"})


def is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _read_variable(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name) or environment.get(name.upper()) or ""
