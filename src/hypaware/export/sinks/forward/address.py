"""The canonical spelling of a server's URL, so that a new spelling in the config does not hold a stream."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit, urlunsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}


def normalised(url: str) -> str:
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
