"""Checks whether a listen address is free, and finds a free one nearby to suggest in an error message."""

from __future__ import annotations

import socket

_PORTS_TRIED = 50
# Lower ports are reserved for the system.
_LOWEST = 1024
_HIGHEST = 65535
_DEFAULT = 18530


def why_not(listen: str) -> str | None:
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


def free_beside(listen: str) -> str:
    """Return the address of the next free port on the host of `listen`, or on 127.0.0.1 if that host is unusable."""
    host, _, port = listen.rpartition(":")
    first = int(port) + 1 if port.isdecimal() and _LOWEST <= int(port) <= _HIGHEST - _PORTS_TRIED else _DEFAULT
    candidates = [f"{at}:{first + n}" for at in dict.fromkeys((host, "127.0.0.1")) for n in range(_PORTS_TRIED)]
    return next((address for address in candidates if why_not(address) is None), candidates[0])
