"""Deliver to a HypAware server over HTTP: the published v1 contract, and extensions of our own server.

Everything works with a server that implements only the contract: it ignores the headers with a chunk's range and is
never sent a query that it does not support.
"""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from hypaware.export.sink import Sink, SinkSettings, SinkType


def normalise_url(url: str) -> str:
    """Return the canonical URL: scheme and host in lower case, no default port, no user, no trailing slash.

    A stream is then not held because the config spells the same server differently.
    """
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    if ":" in host:
        host = f"[{host}]"
    if parts.port not in (None, {"http": 80, "https": 443}.get(parts.scheme)):
        host = f"{host}:{parts.port}"
    return urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))


def _make(settings: SinkSettings) -> Sink:
    from hypaware.export.sinks.forward.forward_sink import ForwardSink

    return ForwardSink(settings)


FORWARD = SinkType("forward", "a HypAware server", lambda settings: normalise_url(settings.options["url"]), _make)
