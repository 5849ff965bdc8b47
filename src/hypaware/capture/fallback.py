"""The fallback process: it keeps the gateway's address open and serves it while no daemon does (see `handover`).

    python -m hypaware.gateway.fallback HOME [host:port]

There is one per home. It is small and does not load the code that records. While it serves, it forwards a request to
the upstream that the gateway would have chosen, byte for byte except for the request line, `Host` and the hop-by-hop
headers; every response ends its connection, so body framing is not parsed. It exits when no client is attached, no
process holds its sockets and no request has arrived for a while: open sessions keep their base URL. It also exits when
a daemon of another version asks it to; that daemon holds the sockets until the new fallback has them.

@ref capture#listener
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from hypaware import __version__, lock_file
from hypaware.capture import handover, own_upstreams, passing
from hypaware.home import Home

LINGER_SECONDS = 3600.0
_LOOK_SECONDS = 60.0


def _nothing() -> None:
    return None


class Fallback:
    def __init__(self, home: Home, linger: float = LINGER_SECONDS) -> None:
        self._home = home
        self._linger = linger
        self._listeners: dict[str, socket.socket] = {}
        self._holders: dict[socket.socket, str] = {}
        """Control connections of the processes that accept connections themselves, and their addresses."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_activity = time.monotonic()
        self._asked_to_exit = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def run(
        self, addresses: list[str], ready: Callable[[], None] = _nothing, released: Callable[[], None] = _nothing
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
                    self._listen(address)
                except OSError as error:
                    _say(f"cannot open {address}: {error.strerror}")
            ready()
            while not self._asked_to_exit.is_set() and not self._is_superfluous():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._asked_to_exit.wait(), _LOOK_SECONDS)
        finally:
            handover.socket_path(self._home).unlink(missing_ok=True)
            for sock in (control, *self._listeners.values(), *self._holders):
                self._loop.remove_reader(sock)
                sock.close()
            released()
        await asyncio.gather(*self._tasks)

    def _is_superfluous(self) -> bool:
        if self._holders or self._tasks:
            return False
        idle = time.monotonic() - self._last_activity
        return idle > self._linger and not own_upstreams.attached(self._home)

    def _open_control(self) -> socket.socket:
        path = handover.socket_path(self._home)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
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

    def _listen(self, address: str) -> socket.socket:
        listener = handover.bound(address)
        self._add_listener(address, listener)
        return listener

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
        task = self._loop.create_task(passing.serve(client, self._home))
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
                listener = self._listeners.get(address) or self._listen(address)
                self._holders[holder] = address
                self._update_reader(address)
                answer = json.dumps({"version": __version__}).encode() + b"\n"
                socket.send_fds(holder, [answer], [listener.fileno()])
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


def _attached_addresses(home: Home) -> list[str]:
    """Return the addresses that attach wrote for clients, even if the config has changed since."""
    addresses = []
    for path in sorted((home.root / "clients").glob("*/attach.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            addresses.append(urlsplit(json.loads(path.read_bytes())["base_url"]).netloc)
    return addresses


def _say(line: str) -> None:
    sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {line}\n")
    sys.stderr.flush()


def main(arguments: list[str]) -> int:
    """Fork the fallback; return when it serves or when another one already does."""
    read_end, write_end = os.pipe()
    if os.fork():
        os.close(write_end)
        return 0 if os.read(read_end, 1) else 1
    os.close(read_end)
    home = Home(Path(arguments[0]))
    os.umask(0o077)
    lock = lock_file.take(handover.lock_path(home))
    if lock is None:
        os.write(write_end, b".")
        return 0

    def ready() -> None:
        os.write(write_end, b".")
        os.close(write_end)

    async def run() -> None:
        addresses = list(dict.fromkeys((*arguments[1:], *_attached_addresses(home))))
        await Fallback(home).run(addresses, ready, lambda: lock_file.release(lock))

    asyncio.run(run())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
