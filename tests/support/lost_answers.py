"""A connection to a server that breaks after a request was sent and before its answer arrives.

with lost_answers(server.port) as network:
    ...                                   # clients connect to network.port
    network.lose_answer_to(b"COMMIT")     # the next such request is done, and its answer is lost
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class BreakingNetwork:
    port: int
    _request: bytes = b""
    _left: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def lose_answer_to(self, request: bytes, number: int = 1) -> None:
        """Break the connection of the request that holds these bytes, the next one or a later one, once."""
        with self._lock:
            self._request, self._left = request, number

    @property
    def has_lost(self) -> bool:
        return self._left <= 0

    def breaks(self, sent: bytes) -> bool:
        """Return whether the answer to these bytes is to be lost. A request is short, so it is not split."""
        with self._lock:
            if self._left <= 0 or self._request not in sent:
                return False
            self._left -= 1
            return self._left == 0


@contextmanager
def lost_answers(port: int) -> Iterator[BreakingNetwork]:
    """Lead connections to a port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        network = BreakingNetwork(server.getsockname()[1])

        def accept() -> None:
            with suppress(OSError):
                while True:
                    client = server.accept()[0]
                    threading.Thread(target=_serve, args=(client, port, network), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield network
        # Wakes the thread that waits for a connection.
        server.shutdown(socket.SHUT_RDWR)


def _serve(client: socket.socket, port: int, network: BreakingNetwork) -> None:
    with client, suppress(OSError), socket.create_connection(("127.0.0.1", port)) as server:
        lost = threading.Event()
        answering = threading.Thread(target=_answer, args=(server, client, lost), daemon=True)
        answering.start()
        while sent := client.recv(65536):
            if network.breaks(sent):
                lost.set()
            server.sendall(sent)
        # Ends the thread, which waits for an answer.
        server.shutdown(socket.SHUT_RDWR)
        answering.join()


def _answer(server: socket.socket, client: socket.socket, lost: threading.Event) -> None:
    with suppress(OSError):
        while answer := server.recv(65536):
            if lost.is_set():
                break
            client.sendall(answer)
        client.shutdown(socket.SHUT_RDWR)
