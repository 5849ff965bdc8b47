"""The process that keeps the gateway's address open, and serves it while no daemon does (`handover` says how).

    python -m hypaware.capture.fallback HOME [host:port]

One per home, small, without the parts that record. While it serves, a request goes straight to where the gateway would
have sent it, byte for byte but for the head's first line, `Host` and the headers of one connection; every answer ends
its connection, so that nothing needs to know where a body ends. It ends by itself when no client points at the home,
nobody holds its sockets and nobody has called for a while: sessions that are still open keep their base URL. And it
makes way for one of another version when a daemon tells it to, which holds the sockets meanwhile.

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
        """Connections of those that accept themselves, and where."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_call = time.monotonic()
        self._told_to_leave = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def run(
        self, addresses: list[str], ready: Callable[[], None] = _nothing, gone: Callable[[], None] = _nothing
    ) -> None:
        """`gone` is called when another one may take this one's place; what is under way is finished after that."""
        control = self._open_control()
        self._loop.add_reader(control, self._welcome, control)
        try:
            for address in addresses:
                try:
                    self._listen(address)
                except OSError as error:
                    _say(f"{address} cannot be opened: {error.strerror}")
            ready()
            while not self._told_to_leave.is_set() and not self._is_superfluous():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._told_to_leave.wait(), _LOOK_SECONDS)
        finally:
            handover.socket_path(self._home).unlink(missing_ok=True)
            for each in (control, *self._listeners.values(), *self._holders):
                self._loop.remove_reader(each)
                each.close()
            gone()
        await asyncio.gather(*self._tasks)

    def _is_superfluous(self) -> bool:
        if self._holders or self._tasks:
            return False
        quiet = time.monotonic() - self._last_call
        return quiet > self._linger and not own_upstreams.attached(self._home)

    def _open_control(self) -> socket.socket:
        path = handover.socket_path(self._home)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Whoever left it there does not have the lock any more.
        path.unlink(missing_ok=True)
        control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        control.setblocking(False)
        before = os.umask(0o177)
        try:
            control.bind(os.fspath(path))
        finally:
            os.umask(before)
        control.listen()
        return control

    def _listen(self, address: str) -> socket.socket:
        listener = handover.bound(address)
        self._keep(address, listener)
        return listener

    def _keep(self, address: str, listener: socket.socket) -> None:
        if (old := self._listeners.pop(address, None)) is not None:
            self._loop.remove_reader(old)
            old.close()
        self._listeners[address] = listener
        self._serve_or_leave(address)

    def _serve_or_leave(self, address: str) -> None:
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
            # Too many open files: the queue waits, and so do we.
            self._loop.remove_reader(self._listeners[address])
            self._loop.call_later(1.0, self._serve_or_leave, address)
            return
        client.setblocking(False)
        self._last_call = time.monotonic()
        task = self._loop.create_task(passing.serve(client, self._home))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _welcome(self, control: socket.socket) -> None:
        with suppress(OSError):
            holder, _ = control.accept()
            holder.setblocking(False)
            self._loop.add_reader(holder, self._asked, holder)

    def _asked(self, holder: socket.socket) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(holder, 4096, 1)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        if not data:
            self._gone(holder)
            return
        try:
            request = json.loads(data)
            address = str(request["address"])
            if request["wants"] == "leave":
                self._told_to_leave.set()
            elif request["wants"] == "give":
                self._holders[holder] = address
                self._keep(address, socket.socket(fileno=descriptors.pop()))
                holder.sendall(b"{}\n")
            else:
                listener = self._listeners.get(address) or self._listen(address)
                self._holders[holder] = address
                self._serve_or_leave(address)
                answer = json.dumps({"version": __version__}).encode() + b"\n"
                socket.send_fds(holder, [answer], [listener.fileno()])
        except OSError as error:
            with suppress(OSError):
                holder.sendall(json.dumps({"error": error.strerror or str(error)}).encode() + b"\n")
        except (ValueError, KeyError, TypeError, IndexError):
            self._gone(holder)
        for left in descriptors:
            os.close(left)

    def _gone(self, holder: socket.socket) -> None:
        self._loop.remove_reader(holder)
        holder.close()
        address = self._holders.pop(holder, None)
        self._last_call = time.monotonic()
        if address is not None:
            self._serve_or_leave(address)


def _attached_addresses(home: Home) -> list[str]:
    """Where clients call by what attach wrote: also where that is no longer what the config says."""
    found = []
    for path in sorted((home.root / "clients").glob("*/attach.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            found.append(urlsplit(json.loads(path.read_bytes())["base_url"]).netloc)
    return found


def _say(line: str) -> None:
    sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {line}\n")
    sys.stderr.flush()


def main(arguments: list[str]) -> int:
    """Returns when it serves, or when another one of the home does; it goes on in a child that belongs to nobody."""
    hear, tell = os.pipe()
    if os.fork():
        os.close(tell)
        return 0 if os.read(hear, 1) else 1
    os.close(hear)
    home = Home(Path(arguments[0]))
    os.umask(0o077)
    lock = lock_file.take(handover.lock_path(home))
    if lock is None:
        os.write(tell, b".")
        return 0

    def ready() -> None:
        os.write(tell, b".")
        os.close(tell)

    async def run() -> None:
        addresses = list(dict.fromkeys((*arguments[1:], *_attached_addresses(home))))
        await Fallback(home).run(addresses, ready, lambda: lock_file.release(lock))

    asyncio.run(run())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
