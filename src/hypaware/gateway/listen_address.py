"""The gateway's listen address: whether it is free, a free one to suggest instead, and its URL for clients."""

from __future__ import annotations

import socket

from hypaware.errors import NotReady
from hypaware.gateway import handover
from hypaware.home import Home

_PORTS_TRIED = 50
# Lower ports are reserved for the system.
_LOWEST = 1024
_HIGHEST = 65535
_DEFAULT = 18530


def bind_problem(listen: str) -> str | None:
    """Return why `host:port` cannot be bound, or None if it is free."""
    host, _, port = listen.rpartition(":")
    bare = host.strip("[]")
    with socket.socket(socket.AF_INET6 if ":" in bare else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((bare or "127.0.0.1", int(port)))
        except (OSError, ValueError, OverflowError) as error:
            return str(error)
    return None


def find_free_address(listen: str) -> str:
    """Return the address of the next free port on the host of `listen`, or on 127.0.0.1 if that host is unusable."""
    host, _, port = listen.rpartition(":")
    first = int(port) + 1 if port.isdecimal() and _LOWEST <= int(port) <= _HIGHEST - _PORTS_TRIED else _DEFAULT
    candidates = [f"{at}:{first + n}" for at in dict.fromkeys((host, "127.0.0.1")) for n in range(_PORTS_TRIED)]
    return next((address for address in candidates if bind_problem(address) is None), candidates[0])


def gateway_url(listen: str) -> str:
    """Return the URL for `gateway.listen`; a wildcard becomes 127.0.0.1. Raise NotReady without a fixed port."""
    host, _, port = listen.rpartition(":")
    if int(port) == 0:
        raise NotReady(
            f"gateway.listen is {listen}, which has no fixed port, but a client needs one. Nothing was written",
            kind="gateway_address",
            repair=f"hyp config set gateway.listen {find_free_address(listen)}",
        )
    return f"http://127.0.0.1:{port}" if host in ("0.0.0.0", "[::]", "localhost") else f"http://{listen}"


def gateway_unreachable(home: Home, listen: str, reason: str | None = None) -> NotReady:
    """Return the error; `reason` is the gateway's own explanation, if it has one."""
    explanation = reason or f"another program may use the port (see {handover.fallback_log_path(home)})"
    return NotReady(
        f"this home's gateway does not answer at {listen}: {explanation}. Nothing was written",
        kind="gateway_address",
        repair=f"hyp config set gateway.listen {find_free_address(listen)}",
    )
