"""A TCP balancer in front of several servers of this machine: each connection goes to the next one that accepts it."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress


@contextmanager
def balanced(ports: Sequence[int]) -> Iterator[str]:
    """Yield the address of a balancer. A connection that no server accepts is closed."""
    turns = itertools.cycle(range(len(ports)))
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=_serve, args=(client, ports, next(turns))))
            threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        # Closing alone does not wake a thread that waits in accept.
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join()
        for thread in threads:
            thread.join()


def _serve(client: socket.socket, ports: Sequence[int], turn: int) -> None:
    with client:
        for port in (*ports[turn:], *ports[:turn]):
            with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)) as server:
                upward = threading.Thread(target=_copy, args=(client, server))
                upward.start()
                _copy(server, client)
                upward.join()
                return


def _copy(source: socket.socket, to: socket.socket) -> None:
    with suppress(OSError):
        while block := source.recv(65536):
            to.sendall(block)
    for each in (source, to):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
