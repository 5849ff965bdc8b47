"""Whether somebody could listen at an address, and one close by that is free: whoever tells a user to choose another
one names one that works."""

from __future__ import annotations

import socket

_TRIED = 50
# Below are those of the system.
_LOWEST = 1024
_HIGHEST = 65535
_USUAL = 18530


def why_not(listen: str) -> str | None:
    """Why nobody could listen at `host:port` now; None if that is free."""
    host, _, port = listen.rpartition(":")
    bare = host.strip("[]")
    with socket.socket(socket.AF_INET6 if ":" in bare else socket.AF_INET, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((bare or "127.0.0.1", int(port)))
        except (OSError, ValueError, OverflowError) as trouble:
            return str(trouble)
    return None


def free_beside(listen: str) -> str:
    """The first free port after that of `listen`, on its host; on this machine where the host itself is the trouble."""
    host, _, port = listen.rpartition(":")
    first = int(port) + 1 if port.isdecimal() and _LOWEST <= int(port) <= _HIGHEST - _TRIED else _USUAL
    beside = [f"{at}:{first + more}" for at in dict.fromkeys((host, "127.0.0.1")) for more in range(_TRIED)]
    return next((each for each in beside if why_not(each) is None), beside[0])
