"""The fallback process: it keeps the gateway's address open and serves it while no daemon does (see `handover`).

    python -m hypaware.gateway.fallback HOME [host:port]

There is one per home. It does not load the code that records. It forwards a request to the upstream that the gateway
would have chosen, byte for byte except for the request line, `Host` and the hop-by-hop headers. It exits when no client
is attached, no process holds its sockets and no request has arrived for a while: open sessions keep their base URL. It
also exits when a daemon of another version asks it to; that daemon holds the sockets until the new fallback has them.

@ref capture#listener
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from hypaware import __version__, config
from hypaware.config import GatewayConfig
from hypaware.errors import HypError
from hypaware.gateway import handover, routes
from hypaware.gateway.routes import Route, Routes
from hypaware.home import Home, locks

_MAX_HEADER = 1 << 18
_BLOCK = 1 << 16
_HEADER_SECONDS = 600.0
_HOP_BY_HOP = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"te", b"upgrade"))
_OWN_PREFIXES = (b"x-hypaware-", b"x-hyp-")
LINGER_SECONDS = 3600.0
_CHECK_SECONDS = 60.0


def main(arguments: list[str]) -> int:
    """Fork the fallback; return when it serves or when another one already does."""
    read_end, write_end = os.pipe()
    if os.fork():
        os.close(write_end)
        return 0 if os.read(read_end, 1) else 1
    os.close(read_end)
    home = Home(Path(arguments[0]))
    os.umask(0o077)
    lock = locks.try_lock(handover.fallback_lock_path(home))
    if lock is None:
        os.write(write_end, b".")
        return 0

    def ready() -> None:
        os.write(write_end, b".")
        os.close(write_end)

    async def run() -> None:
        addresses = arguments[1:]
        # The addresses that attach wrote for clients, even if the config has changed since.
        for path in sorted((home.root / "clients").glob("*/attach.json")):
            with suppress(OSError, ValueError, KeyError, TypeError):
                addresses.append(urlsplit(json.loads(path.read_bytes())["base_url"]).netloc)
        await Fallback(home).run(list(dict.fromkeys(addresses)), ready, lambda: locks.unlock(lock))

    asyncio.run(run())
    return 0


class Fallback:
    def __init__(self, home: Home, linger: float = LINGER_SECONDS) -> None:
        self._home = home
        self._linger = linger
        self._listeners: dict[str, socket.socket] = {}
        self._holders: dict[socket.socket, str] = {}
        """Control connections of the processes that accept connections themselves, and their addresses."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._gateway = GatewayConfig()
        self._custom_upstreams: tuple[Route, ...] = ()
        self._last_activity = time.monotonic()
        self._asked_to_exit = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def run(
        self,
        addresses: list[str],
        ready: Callable[[], None] = lambda: None,
        released: Callable[[], None] = lambda: None,
    ) -> None:
        """Serve until superfluous.

        `ready` is called when it serves, `released` when another fallback may start; running requests finish after
        that.
        """
        control = self._open_control()
        self._loop.add_reader(control, self._accept_control, control)
        try:
            for address in addresses:
                try:
                    self._add_listener(address, handover.bind_listener(address))
                except OSError as error:
                    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                    sys.stderr.write(f"{now} cannot open {address}: {error.strerror}\n")
            self._load_routes()
            ready()
            while not self._asked_to_exit.is_set() and not self._is_superfluous():
                self._load_routes()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._asked_to_exit.wait(), _CHECK_SECONDS)
        finally:
            handover.control_socket_path(self._home).unlink(missing_ok=True)
            for sock in (control, *self._listeners.values(), *self._holders):
                self._loop.remove_reader(sock)
                sock.close()
            released()
        await asyncio.gather(*self._tasks)

    def _is_superfluous(self) -> bool:
        if self._holders or self._tasks:
            return False
        idle = time.monotonic() - self._last_activity
        return idle > self._linger and not routes.has_attached_client(self._home)

    def _open_control(self) -> socket.socket:
        path = handover.control_socket_path(self._home)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handover.require_own_folder(self._home)
        # A leftover socket of a process that no longer holds the lock.
        path.unlink(missing_ok=True)
        control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        control.setblocking(False)
        previous = os.umask(0o177)
        try:
            control.bind(os.fspath(path))
        finally:
            os.umask(previous)
        control.listen()
        return control

    def _add_listener(self, address: str, listener: socket.socket) -> None:
        if (old := self._listeners.pop(address, None)) is not None:
            self._loop.remove_reader(old)
            old.close()
        self._listeners[address] = listener
        self._update_reader(address)

    def _update_reader(self, address: str) -> None:
        listener = self._listeners.get(address)
        if listener is None:
            return
        if address in self._holders.values():
            self._loop.remove_reader(listener)
        else:
            self._loop.add_reader(listener, self._accept, address)

    def _accept(self, address: str) -> None:
        try:
            client, _ = self._listeners[address].accept()
        except (BlockingIOError, ConnectionAbortedError, InterruptedError):
            return
        except OSError:
            # Too many open files: leave the connections in the queue for a second.
            self._loop.remove_reader(self._listeners[address])
            self._loop.call_later(1.0, self._update_reader, address)
            return
        client.setblocking(False)
        self._last_activity = time.monotonic()
        task = self._loop.create_task(_forward_connection(client, self._home, self._load_routes))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _accept_control(self, control: socket.socket) -> None:
        with suppress(OSError):
            holder, _ = control.accept()
            holder.setblocking(False)
            self._loop.add_reader(holder, self._handle_control, holder)

    def _handle_control(self, holder: socket.socket) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(holder, 4096, 1)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        if not data:
            self._drop_holder(holder)
            return
        try:
            request = json.loads(data)
            address = str(request["address"])
            if request["wants"] == "leave":
                self._asked_to_exit.set()
            elif request["wants"] == "give":
                self._holders[holder] = address
                self._add_listener(address, socket.socket(fileno=descriptors.pop()))
                holder.sendall(b"{}\n")
            else:
                if address not in self._listeners:
                    self._add_listener(address, handover.bind_listener(address))
                self._holders[holder] = address
                self._update_reader(address)
                answer = json.dumps({"version": __version__}).encode() + b"\n"
                socket.send_fds(holder, [answer], [self._listeners[address].fileno()])
        except OSError as error:
            with suppress(OSError):
                holder.sendall(json.dumps({"error": error.strerror or str(error)}).encode() + b"\n")
        except (ValueError, KeyError, TypeError, IndexError):
            self._drop_holder(holder)
        for descriptor in descriptors:
            os.close(descriptor)

    def _drop_holder(self, holder: socket.socket) -> None:
        self._loop.remove_reader(holder)
        holder.close()
        address = self._holders.pop(holder, None)
        self._last_activity = time.monotonic()
        if address is not None:
            self._update_reader(address)

    def _load_routes(self) -> Routes:
        """Read the routes for each request, so that changes apply immediately.

        A broken config or a removed home leaves the last upstreams in place: the client may send keys that only those
        may see.
        """
        if self._home.root.is_dir():
            with suppress(HypError, OSError):
                self._gateway = config.load(self._home).gateway
            self._custom_upstreams = routes.read_custom_upstreams(self._home)
        return Routes((*self._gateway.upstreams, *self._custom_upstreams), allowed_hosts=self._gateway.allowed_hosts)


async def _forward_connection(client: socket.socket, home: Home, load_routes: Callable[[], Routes]) -> None:
    """Forward one connection until one side closes it, without recording. Never raises.

    Only the request header is read, everything else is copied. The request is forwarded with `Connection: close`, so
    the response ends with its connection and neither side's framing has to be parsed.
    """
    reader, writer = await asyncio.open_connection(sock=client, limit=_MAX_HEADER)
    try:
        with suppress(OSError, asyncio.IncompleteReadError, TimeoutError, ValueError):
            await _forward(reader, writer, home, load_routes)
    finally:
        await _close_writer(writer)


async def _forward(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, home: Home, load_routes: Callable[[], Routes]
) -> None:
    try:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _HEADER_SECONDS)
    except asyncio.LimitOverrunError:
        await _send_error(writer, 431, "headers_too_large", "the request header is too large")
        return
    first, *headers = head[:-4].split(b"\r\n")
    if first.count(b" ") != 2:
        await _send_error(writer, 400, "malformed_request", "this is not an HTTP/1.1 request")
        return
    method, target, version = first.split(b" ")
    path = target.decode("utf-8", "surrogateescape")
    known_routes = load_routes()
    fields = (each.decode("latin-1").partition(":") for each in headers)
    if (refusal := known_routes.find_refusal((name.strip(), value) for name, _, value in fields)) is not None:
        await _send_error(writer, 403, refusal, "requests from web pages and for other hosts are refused")
        return
    if path.partition("?")[0] == handover.HEALTH_PATH:
        await _send_json(writer, 200, handover.describe_health(home, "fallback"))
        return
    if any(each.lower().startswith(b"upgrade:") and b"websocket" in each.lower() for each in headers):
        # As in the gateway: the client uses HTTP immediately.
        await _send_error(writer, 426, "websocket_refused", "WebSockets are not supported", "Upgrade: HTTP/1.1")
        return
    match = known_routes.find(path)
    if match is None:
        await _send_error(writer, 404, "no_route", f"no upstream is configured for {path.partition('?')[0][:200]}")
        return
    url = urlsplit(match.url)
    try:
        upstream = await asyncio.wait_for(_connect_upstream(url), routes.CONNECT_SECONDS)
    except (OSError, TimeoutError, ValueError) as error:
        await _send_error(writer, 502, "upstream_down", f"cannot connect to {url.hostname}: {type(error).__name__}")
        return
    try:
        upstream[1].write(_build_header(method, match.url, url, version, headers))
        # Until the response ends or the client closes its connection.
        tasks = [asyncio.create_task(_copy(reader, upstream[1])), asyncio.create_task(_copy(upstream[0], writer))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        await _close_writer(upstream[1])


def _build_header(method: bytes, address: str, url: SplitResult, version: bytes, headers: list[bytes]) -> bytes:
    listed = b",".join(each.partition(b":")[2] for each in headers if each.lower().startswith(b"connection:"))
    excluded = _HOP_BY_HOP | {name.strip().lower() for name in listed.split(b",")}
    origin = f"{url.scheme}://{url.netloc}"
    target = address[len(origin) :].encode("utf-8", "surrogateescape") or b"/"
    lines = [b"%s %s %s" % (method, target, version), b"Host: " + url.netloc.rpartition("@")[2].encode()]
    for each in headers:
        name = each.partition(b":")[0].strip().lower()
        if name != b"host" and name not in excluded and not name.startswith(_OWN_PREFIXES):
            lines.append(each)
    return b"\r\n".join((*lines, b"Connection: close", b"", b""))


async def _connect_upstream(url: SplitResult) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, is_tls = url.hostname or "", url.scheme == "https"
    port = url.port or (443 if is_tls else 80)
    proxy = routes.find_proxy(url.geturl(), os.environ)
    if proxy is None:
        return await asyncio.open_connection(host, port, ssl=_tls_context() if is_tls else None, limit=_BLOCK)
    address = urlsplit(proxy.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port or 3128, limit=_BLOCK)
    lines = [f"CONNECT {host}:{port} HTTP/1.1", f"Host: {host}:{port}"]
    lines += [f"{name}: {value}" for name, value in proxy.headers.items()]
    writer.write("\r\n".join((*lines, "", "")).encode())
    response = await reader.readuntil(b"\r\n\r\n")
    if b" 200" not in response.split(b"\r\n")[0]:
        raise ConnectionError("the proxy refused the connection")
    if is_tls:
        await writer.start_tls(_tls_context(), server_hostname=host)
    return reader, writer


@cache
def _tls_context() -> ssl.SSLContext:
    return routes.build_tls_context(os.environ, tolerant=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while block := await reader.read(_BLOCK):
        writer.write(block)
        await writer.drain()


async def _send_error(writer: asyncio.StreamWriter, status: int, kind: str, message: str, *headers: str) -> None:
    error = {"type": kind, "message": f"HypAware on this machine: {message}"}
    await _send_json(writer, status, {"type": "error", "error": error}, *headers)


async def _send_json(writer: asyncio.StreamWriter, status: int, document: dict[str, object], *headers: str) -> None:
    body = json.dumps(document).encode()
    writer.write(
        b"HTTP/1.1 %d \r\nContent-Type: application/json\r\nContent-Length: %d\r\nServer: hypaware-fallback\r\n"
        b"Connection: close\r\n" % (status, len(body))
    )
    writer.write("".join(f"{each}\r\n" for each in (*headers, "")).encode())
    writer.write(body)
    await writer.drain()


async def _close_writer(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError, ssl.SSLError, TimeoutError):
        await asyncio.wait_for(writer.wait_closed(), 5.0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
