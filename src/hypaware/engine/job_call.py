"""The client side of one job: sends the request, forwards its events, and returns its result or raises its error.

Ctrl-C can arrive while a frame is partly read. So the signal handler only writes to a pipe that the caller polls
together with the socket, and frames are always read completely. Within the caller's `on_event` it interrupts at once.
The first Ctrl-C cancels the job and waits a short time for its end; the second stops waiting.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from hypaware.engine.jobs import Event, OnEvent
from hypaware.engine.protocol import JobConnection, Message, ProtocolError, decode_error
from hypaware.errors import Cancelled, Retryable

CALLER_CANCEL_SECONDS = 5.0


class NotAccepted(Exception):
    """The engine ended before it accepted the job. Nothing was done, and the job can be sent again."""


class HandedOver(Exception):
    """Nothing was done here. The job must be sent to the engine that owns the lake."""


def call_job(connection: JobConnection, job: str, request: Message, on_event: OnEvent) -> dict[str, Any]:
    with _Interrupts() as interrupts:
        try:
            return _follow(connection, job, request, on_event, interrupts)
        except KeyboardInterrupt:
            raise Cancelled(f"{job} was cancelled") from None


def _follow(
    connection: JobConnection, job: str, request: Message, on_event: OnEvent, interrupts: _Interrupts
) -> dict[str, Any]:
    try:
        connection.send(request)
    except ConnectionError:
        raise NotAccepted from None
    accepted = False
    while True:
        try:
            message = _next(connection, interrupts)
        except KeyboardInterrupt:
            _cancel(connection, interrupts)
            raise
        if isinstance(message, bytes) or (message and message["type"] in ("progress", "note")):
            try:
                with interrupts.immediately():
                    on_event(_event(message))
            except BaseException:
                _cancel(connection, interrupts)
                raise
            continue
        match message or {}:
            case {"type": "accepted"}:
                accepted = True
            case {"type": "result", "result": dict() as result}:
                return result
            case {"type": "error"} as failure:
                raise decode_error(failure)
            case {"type": "handover"}:
                raise HandedOver
            case _ if not accepted:
                raise NotAccepted
            case _:
                raise Retryable(
                    f"the engine died while running {job}; no acknowledged data is lost, run the command again",
                    kind="engine_died",
                )


def _next(connection: JobConnection, interrupts: _Interrupts, deadline: float | None = None) -> Message | bytes | None:
    try:
        return connection.receive(lambda: interrupts.wait(connection.socket, deadline))
    except ProtocolError:
        return None


def _event(message: Message | bytes) -> Event:
    if isinstance(message, bytes):
        return message
    return {"event": message["type"], **{name: value for name, value in message.items() if name != "type"}}


def _cancel(connection: JobConnection, interrupts: _Interrupts) -> None:
    """Cancel the job. Keep reading, so that a job that is blocked while sending can end, and ignore the rest."""
    deadline = time.monotonic() + CALLER_CANCEL_SECONDS
    try:
        connection.send({"type": "cancel"})
        while True:
            match _next(connection, interrupts, deadline):
                case None | {"type": "result" | "error" | "refused" | "handover"}:
                    return
    except (ConnectionError, TimeoutError):
        return


class _Interrupts:
    """Handles Ctrl-C during a call. Has no effect outside the main thread, or if SIGINT is ignored."""

    def __init__(self) -> None:
        self._pipe: tuple[int, int] | None = None
        self._previous_handler: Any = None
        self._immediate = False

    def __enter__(self) -> _Interrupts:
        on_main_thread = threading.current_thread() is threading.main_thread()
        if on_main_thread and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            self._pipe = os.pipe()
            os.set_blocking(self._pipe[0], False)
            self._previous_handler = signal.signal(signal.SIGINT, self._interrupted)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pipe is not None:
            signal.signal(signal.SIGINT, self._previous_handler)
            for end in self._pipe:
                os.close(end)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if self._immediate:
            raise KeyboardInterrupt
        assert self._pipe is not None
        os.write(self._pipe[1], b"\0")

    @contextmanager
    def immediately(self) -> Iterator[None]:
        self._immediate = True
        try:
            self._raise_pending()
            yield
        finally:
            self._immediate = False

    def wait(self, sock: socket.socket, deadline: float | None) -> None:
        """Wait until the socket is readable. Raise KeyboardInterrupt on Ctrl-C, or TimeoutError at the deadline."""
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        if self._pipe is not None:
            poll.register(self._pipe[0], select.POLLIN)
        left = None if deadline is None else 1000 * max(0.0, deadline - time.monotonic())
        if not poll.poll(left):
            raise TimeoutError
        self._raise_pending()

    def _raise_pending(self) -> None:
        if self._pipe is None:
            return
        try:
            os.read(self._pipe[0], 1)
        except BlockingIOError:
            return
        raise KeyboardInterrupt
