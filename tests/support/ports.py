"""Reserves a port for a server that is started later, or stopped and started again.

A port that was only looked up is not reserved: before the server starts, the system may give it to another server, or
to the local end of a connection.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

FreePort = Callable[[], int]


@contextmanager
def held_port() -> Iterator[int]:
    """Connections are refused until a server listens."""
    holder, port = hold_port()
    with holder:
        yield port


def hold_port() -> tuple[socket.socket, int]:
    """Return the port and the socket that reserves it until it is closed.

    On Linux, a socket can listen on an address to which others are bound, if all of them set SO_REUSEADDR, and the
    system never assigns a bound address. On other systems the port is only likely to stay free.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    port: int = holder.getsockname()[1]
    if sys.platform != "linux":
        holder.close()
    return holder, port
