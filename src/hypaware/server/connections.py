"""Accepts the server's connections, and bounds how many are open.

Every connection needs a file descriptor, and a process has few of them. A client that opens connections and sends no
request, or no end of one, must not take those of others. So when the limit is reached, a new connection replaces an
idle one: the oldest of the address that has the most. A connection whose request is being answered is never closed; if
all are, the new one is refused. A TLS handshake that has not ended counts as idle.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from hypaware.errors import NotReady
from hypaware.server.health import log

BACKLOG = 128
_HANDSHAKE_SECONDS = 10.0
_RETRY_SECONDS = 0.1


@dataclass(eq=False)
class _OpenConnection:
    address: str
    transport: asyncio.BaseTransport | None = None
    """None until the handshake has ended."""
    opening: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def is_closed(self) -> bool:
        if self.transport is not None:
            return self.transport.is_closing()
        return self.opening is not None and self.opening.done()

    def abort(self) -> None:
        if isinstance(self.transport, asyncio.WriteTransport):
            self.transport.abort()
        elif self.opening is not None:
            self.opening.cancel()


class ConnectionLimit:
    def __init__(self, limit: int) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Half of the descriptors are for batches, the state and the workers.
        self._limit = limit if soft == resource.RLIM_INFINITY else min(limit, max(1, soft // 2))
        self._open: list[_OpenConnection] = []
        self._answering: Counter[asyncio.BaseTransport] = Counter()

    @property
    def count(self) -> int:
        return sum(not each.is_closed for each in self._open)

    @contextmanager
    def answering(self, transport: asyncio.BaseTransport | None) -> Iterator[None]:
        """Keep the connection open during the block."""
        if transport is None:
            yield
            return
        self._answering[transport] += 1
        try:
            yield
        finally:
            self._answering[transport] -= 1
            if not self._answering[transport]:
                del self._answering[transport]

    async def accept(
        self, listener: socket.socket, make_protocol: Callable[[], asyncio.BaseProtocol], tls: ssl.SSLContext | None
    ) -> None:
        """Accept connections until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, peer = await loop.sock_accept(listener)
            except OSError as error:
                log.warning("cannot accept a connection: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if not self._make_room():
                sock.close()
                continue
            connection = _OpenConnection(str(peer[0]))
            self._open.append(connection)
            connection.opening = loop.create_task(_open_connection(connection, sock, make_protocol, tls))
            # A connection that is already waiting would be accepted without a pause.
            await asyncio.sleep(0)

    def _make_room(self) -> bool:
        self._open = [each for each in self._open if not each.is_closed]
        if len(self._open) < self._limit:
            return True
        idle = [each for each in self._open if each.transport is None or each.transport not in self._answering]
        if not idle:
            return False
        ((address, _),) = Counter(each.address for each in idle).most_common(1)
        oldest = next(each for each in idle if each.address == address)
        oldest.abort()
        self._open.remove(oldest)
        return True


async def open_listeners(host: str, port: int) -> list[socket.socket]:
    """Listen on every address of the host, on the same port. Raise NotReady if that is not possible."""
    listeners: list[socket.socket] = []
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for family, _, _, _, address in dict.fromkeys(found):
            chosen = listeners[0].getsockname()[1] if listeners else address[1]
            listeners.append(socket.create_server((address[0], chosen), family=family, backlog=BACKLOG))
            listeners[-1].setblocking(False)
    except OSError as error:
        for each in listeners:
            each.close()
        raise NotReady(f"cannot listen on {host}:{port}: {error}", kind="cannot_listen") from error
    return listeners


async def _open_connection(
    connection: _OpenConnection,
    sock: socket.socket,
    make_protocol: Callable[[], asyncio.BaseProtocol],
    tls: ssl.SSLContext | None,
) -> None:
    timeout = _HANDSHAKE_SECONDS if tls else None
    try:
        with suppress(OSError, TimeoutError):
            connection.transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                make_protocol, sock, ssl=tls, ssl_handshake_timeout=timeout
            )
    finally:
        if connection.transport is None:
            sock.close()
