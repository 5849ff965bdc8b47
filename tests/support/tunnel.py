"""An HTTP proxy on this machine that leads every CONNECT, whatever its host, to a port of this machine."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Tunnel:
    url: str
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """(host:port, the value of Proxy-Authorization) of each connection."""


@contextmanager
def tunnel_to(port: int) -> Iterator[Tunnel]:
    class Handler(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            tunnel.asked.append((self.path, self.headers.get("Proxy-Authorization")))
            with socket.create_connection(("127.0.0.1", port)) as other:
                self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                upward = threading.Thread(target=_copy, args=(self.connection, other))
                upward.start()
                _copy(other, self.connection)
                for each in (self.connection, other):
                    with suppress(OSError):
                        each.shutdown(socket.SHUT_RDWR)
                upward.join()

        def log_message(self, *_arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    tunnel = Tunnel(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield tunnel
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _copy(source: socket.socket, to: socket.socket) -> None:
    with suppress(OSError):
        while block := source.recv(65536):
            to.sendall(block)
