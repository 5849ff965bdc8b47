"""A server's canonical URL, and its extensions of the published contract."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from hypaware.export.sink import ChunkLimits

_DEFAULT_PORTS = {"http": 80, "https": 443}
CONTRACT_LIMITS = ChunkLimits(rows=5_000, bytes=4 << 20)


def normalise_url(url: str) -> str:
    """Return the canonical URL: scheme and host in lower case, no default port, no user, no trailing slash.

    A stream is then not held because the config spells the same server differently.
    """
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    if ":" in host:
        host = f"[{host}]"
    if parts.port not in (None, _DEFAULT_PORTS.get(parts.scheme)):
        host = f"{host}:{parts.port}"
    return urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))


def is_loopback(address: str) -> bool:
    host = urlsplit(address).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


@dataclass(frozen=True)
class ServerCapabilities:
    server_id: str | None = None
    extensions: frozenset[str] = frozenset()
    encodings: frozenset[str] = frozenset()
    limits: ChunkLimits = CONTRACT_LIMITS


PLAIN_SERVER = ServerCapabilities()


def parse_capabilities(document: dict[str, Any] | None) -> ServerCapabilities:
    """Parse the response of `GET /v1/capabilities`.

        {"server", "server_id", "api": 1, "extensions": […], "encodings": […], "limits": {…}}

    Any other document, or an unknown `api`, means a plain server: no extension is used, which is always safe. A field
    of the wrong type counts as absent.
    """
    if document is None or document.get("api") != 1 or not isinstance(document.get("extensions"), list):
        return PLAIN_SERVER
    server_id, limits = document.get("server_id"), document.get("limits")
    announced = limits if isinstance(limits, dict) else {}
    return ServerCapabilities(
        server_id=server_id if isinstance(server_id, str) and server_id else None,
        extensions=_string_set(document["extensions"]),
        encodings=_string_set(document.get("encodings")),
        limits=ChunkLimits(
            rows=_smaller(CONTRACT_LIMITS.rows, announced.get("max_rows")),
            bytes=_smaller(CONTRACT_LIMITS.bytes, announced.get("max_body_bytes")),
        ),
    )


def _string_set(value: Any) -> frozenset[str]:
    return frozenset(item for item in value if isinstance(item, str)) if isinstance(value, list) else frozenset()


def _smaller(ours: int, theirs: Any) -> int:
    return min(ours, theirs) if type(theirs) is int and theirs > 0 else ours
