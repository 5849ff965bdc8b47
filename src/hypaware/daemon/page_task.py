"""Let the page be served: own its address, and start its process on the first request.

The daemon opens `page.listen` and waits for a connection without accepting it. With the first one it starts
`hypaware.page.process`, which inherits the socket and accepts. When that process ends, because it is idle or has
failed, the daemon waits for the next connection; connections that arrive in between stay in the socket's queue. The
daemon loads nothing of the page itself.

An address that cannot be opened is logged once and retried, and delays nothing else. A process that fails soon after
its start is started again after a growing pause.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hypaware.config import Config, PageConfig
from hypaware.daemon.status_file import StatusFile
from hypaware.engine.background import Backoff, RetryTimer, TaskClock, run_in_thread
from hypaware.gateway.handover import bind_page_listener
from hypaware.home import Home, durable_files

log = logging.getLogger("hypaware.daemon")

_POLL_SECONDS = 1.0
_STOP_SECONDS = 3.0
_LOG_LIMIT = 1 << 20
_LONGEST_PAUSE_SECONDS = 60.0
# A process that has served for so long has not failed at its start.
_SOON_SECONDS = 10.0


def page_log_path(home: Home) -> Path:
    return home.logs / "page.log"


@dataclass(frozen=True)
class _Listener:
    listen: str
    """The address in the config; its port may be 0."""
    socket: socket.socket

    @property
    def address(self) -> str:
        host, port = self.socket.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class PageTask:
    def __init__(self, home: Home, config: Callable[[], Config], status: StatusFile, clock: TaskClock) -> None:
        self._home = home
        self._config = config
        self._status = status
        self._clock = clock
        self._listener: _Listener | None = None
        self._open_retry = RetryTimer(clock)
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._start_after = 0.0
        self._backoff = Backoff(longest=_LONGEST_PAUSE_SECONDS)
        self._watched = False
        self._is_asked = False
        self._wakeup = asyncio.Event()
        self._error: str | None = None

    async def begin(self) -> None:
        """Open the address, so that the first status names it. The status file is not written yet."""
        await self._check()

    async def run(self) -> None:
        """Serve until the task is cancelled."""
        while True:
            self._status.write()
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._wakeup.wait()
            self._wakeup.clear()
            await self._check()

    def reload(self) -> None:
        self._open_retry.reset()
        self._wakeup.set()

    async def close(self) -> None:
        """End the process and close the address, after `run` was cancelled."""
        await self._close_address()

    async def _check(self) -> None:
        settings = self._config().page
        try:
            await self._apply(settings)
        except Exception as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
            if self._error != reason:
                log.warning("the page cannot be served on %s: %s; retrying", settings.listen, reason)
            self._error = reason
        else:
            if self._listener is not None or not settings.enabled:
                self._error = None
        state = "listening" if self._listener else "down" if settings.enabled else "off"
        listen = self._listener.address if self._listener else settings.listen
        pid = self._process.pid if self._process else None
        self._status.note("page", state=state, listen=listen, error=self._error, pid=pid)

    async def _apply(self, settings: PageConfig) -> None:
        if (listener := self._listener) and (not settings.enabled or listener.listen != settings.listen):
            log.info("the page on %s is closed", listener.address)
            await self._close_address()
        if not settings.enabled:
            return
        if self._listener is None:
            if not self._open_retry.is_due():
                return
            with self._open_retry:
                self._listener = _Listener(settings.listen, bind_page_listener(settings.listen))
            log.info("the page is at http://%s; to open it: hyp open", self._listener.address)
        self._note_end()
        if self._process is not None:
            return
        if not self._is_asked:
            self._watch()
        elif self._clock.monotonic() >= self._start_after:
            self._is_asked = False
            await self._start()

    def _watch(self) -> None:
        """Wait for a connection, without accepting it."""
        assert self._listener is not None
        if not self._watched:
            asyncio.get_running_loop().add_reader(self._listener.socket, self._ask)
            self._watched = True

    def _ask(self) -> None:
        self._unwatch()
        self._is_asked = True
        self._wakeup.set()

    def _unwatch(self) -> None:
        if self._watched and self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener.socket)
        self._watched = False

    async def _start(self) -> None:
        assert self._listener is not None
        listener = self._listener.socket
        self._started_at = self._clock.monotonic()
        process = await run_in_thread(lambda: start_page_process(self._home, listener), "page")
        self._process = process
        loop = asyncio.get_running_loop()

        def wait() -> None:
            process.wait()
            with suppress(RuntimeError):  # the daemon has ended
                loop.call_soon_threadsafe(self._wakeup.set)

        run_in_thread(wait, "page end")

    def _note_end(self) -> None:
        if self._process is None or (code := self._process.poll()) is None:
            return
        _close_pipe(self._process)
        self._process = None
        if self._clock.monotonic() - self._started_at >= _SOON_SECONDS:
            self._backoff.succeeded()
        else:
            self._start_after = self._clock.monotonic() + self._backoff.failed()
        if code != 0:
            log.warning("the page's process ended with code %d; see %s", code, page_log_path(self._home))

    async def _close_address(self) -> None:
        self._unwatch()
        self._is_asked = False
        if self._process is not None:
            process, self._process = self._process, None
            await run_in_thread(lambda: _end(process), "page end")
        if self._listener is not None:
            self._listener.socket.close()
            self._listener = None


def start_page_process(home: Home, listener: socket.socket) -> subprocess.Popen[bytes]:
    """Start the process that accepts on this socket. It ends when its stdin, which only the caller holds, closes."""
    path = page_log_path(home)
    durable_files.make_dir(path.parent)
    if path.exists() and path.stat().st_size > _LOG_LIMIT:
        path.replace(path.with_name(f"{path.name}.1"))
    number = listener.fileno()
    log_fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "hypaware.page.process", str(home.root), "--socket", str(number)],
            stdin=subprocess.PIPE,
            stdout=log_fd,
            stderr=log_fd,
            cwd="/",
            env={**os.environ, "HYP_HOME": str(home.root)},
            pass_fds=(number,),
            start_new_session=True,
        )
    finally:
        os.close(log_fd)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _close_pipe(process)


def _close_pipe(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
