"""A port for a server that is started later, or stopped and started again: nobody else is given it in between.

A port that was only looked up is anybody's: by the time the server starts, the system may have given it to another
test's server, or to the near end of a connection.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

FreePort = Callable[[], int]


@contextmanager
def held_port() -> Iterator[int]:
    """Who calls there is refused, until somebody listens."""
    holder, port = hold_port()
    with holder:
        yield port


def hold_port() -> tuple[socket.socket, int]:
    """The port, and what holds it until it is closed.

    On Linux one socket may listen at an address that others are bound to, if all of them say that they share it; and an
    address that somebody is bound to is given to nobody. Elsewhere the port is only likely to stay free.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    port: int = holder.getsockname()[1]
    if sys.platform != "linux":
        holder.close()
    return holder, port
