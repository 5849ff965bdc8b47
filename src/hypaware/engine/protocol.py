"""The protocol of the engine's socket: its frames and messages, and the caller's side of one job.

A frame is one type byte, four bytes of length (big endian) and the payload: `J`, a JSON object with a
`type`, or `B`, raw result bytes. One connection carries one request.

    engine  → hello {protocol, version, pid}
    caller  → job {job, args, crash_at, run_id} | status | stop {grace}
    engine  → accepted {id}, then progress, note and bytes in the job's order, then result or error
            | refused: the engine is about to end and did not accept the job | handover: see `inline`
    caller  → cancel, at any time; closing the connection has the same effect

`hello`, `status` and `stop` are the same in every protocol version, so that a newer program can stop an engine that an
older one started. An error is sent with the name of its class in `hypaware.errors`.

`call_job` sends a request, forwards the events of the job, and returns its result or raises its error. Ctrl-C can
arrive while a frame is partly read. So the signal handler only writes to a pipe that the caller polls together with the
socket, and frames are always read completely. Within the caller's `on_event` it interrupts at once. The first Ctrl-C
cancels the job and waits a short time for its end; the second stops waiting.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from hypaware import __version__, errors, telemetry
from hypaware.engine.jobs import OnEvent
from hypaware.errors import Cancelled, Retryable

PROTOCOL: Final = 1
MAX_FRAME: Final = 64 * 1024 * 1024
_CHUNK: Final = 1024 * 1024
_RECEIVE: Final = 256 * 1024
_HEADER: Final = struct.Struct(">cI")
_JSON: Final = b"J"
_BYTES: Final = b"B"
CALLER_CANCEL_SECONDS = 5.0
Message = dict[str, Any]


class ProtocolError(Exception):
    """The received data is not a valid frame. The connection cannot be used any more."""


class JobConnection:
    """Sends and receives frames over a stream socket. Any thread may send; only one thread may receive."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._sending = threading.Lock()
        self._received = bytearray()

    def send(self, message: Message) -> None:
        self.send_frame(encode_frame(message))

    def send_frame(self, data: bytes) -> None:
        with self._sending:
            self.socket.sendall(data)

    def send_bytes(self, data: bytes) -> None:
        view = memoryview(data)
        for start in range(0, len(view), _CHUNK):
            part = view[start : start + _CHUNK]
            with self._sending:
                self.socket.sendall(_HEADER.pack(_BYTES, len(part)))
                self.socket.sendall(part)

    def receive(self, wait: Callable[[], None] = lambda: None) -> Message | bytes | None:
        """Return the next frame, or None if the other side has disconnected.

        `wait` is called before each read and may raise. Data received so far is kept, so that the caller can continue
        to receive afterwards.
        """
        if not self._fill(_HEADER.size, wait):
            return None
        kind, length = _HEADER.unpack_from(self._received)
        if kind not in (_JSON, _BYTES) or length > MAX_FRAME:
            raise ProtocolError(f"a frame of type {kind!r} and {length} bytes")
        if not self._fill(_HEADER.size + length, wait):
            return None
        payload = bytes(memoryview(self._received)[_HEADER.size : _HEADER.size + length])
        del self._received[: _HEADER.size + length]
        if kind == _BYTES:
            return payload
        try:
            message = json.loads(payload)
        except ValueError as error:
            raise ProtocolError(f"a message that is not JSON: {error}") from None
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            raise ProtocolError("a message without a type")
        return message

    def _fill(self, size: int, wait: Callable[[], None]) -> bool:
        while len(self._received) < size:
            wait()
            data = b""
            with suppress(ConnectionError):
                data = self.socket.recv(_RECEIVE)
            if not data:
                return False
            self._received += data
        return True

    def shut_down(self) -> None:
        """Shut the connection down for both sides, and unblock a thread that is waiting on it."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> JobConnection:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


def encode_frame(message: Message) -> bytes:
    """Encode a message. Raise TypeError or ValueError if it is not valid JSON, ProtocolError if it is too large."""
    payload = json.dumps(message, separators=(",", ":")).encode()
    if len(payload) > MAX_FRAME:
        raise ProtocolError(f"a {message['type']} of {len(payload)} bytes is larger than the maximum frame")
    return _HEADER.pack(_JSON, len(payload)) + payload


def hello_message(pid: int) -> Message:
    return {"type": "hello", "protocol": PROTOCOL, "version": __version__, "pid": pid}


def is_same_version(greeting: Message) -> bool:
    return greeting.get("protocol") == PROTOCOL and greeting.get("version") == __version__


def encode_error(error: errors.HypError) -> Message:
    known = next(cls for cls in type(error).__mro__ if cls.__module__ == errors.__name__)
    return {"type": "error", "class": known.__name__, "exit_code": error.exit_code, **error.as_json()}


def decode_error(message: Message) -> errors.HypError:
    """Return the error that the job raised, as its class or the nearest base class in `hypaware.errors`."""
    error_class = getattr(errors, str(message.get("class")), None)
    if not (isinstance(error_class, type) and issubclass(error_class, errors.HypError)):
        error_class = errors.HypError
    if error_class is errors.Cancelled:
        return errors.Cancelled(message["message"])
    error: errors.HypError = error_class(message["message"], kind=message["kind"], repair=message.get("repair"))
    error.exit_code = message["exit_code"]
    return error


class NotAccepted(Exception):
    """The engine ended before it accepted the job. Nothing was done, and the job can be sent again."""


class HandedOver(Exception):
    """Nothing was done here. The job must be sent to the engine that owns the lake."""


def job_request(name: str, args: dict[str, Any]) -> Message:
    return {
        "type": "job",
        "job": name,
        "args": args,
        "crash_at": os.environ.get("HYP_CRASH_AT"),
        "run_id": telemetry.dev_run_id(),
    }


def call_job(connection: JobConnection, request: Message, on_event: OnEvent) -> dict[str, Any]:
    job = request["job"]
    with _Interrupts(job) as interrupts:
        try:
            connection.send(request)
        except ConnectionError:
            raise NotAccepted from None
        accepted = False
        while True:
            try:
                message = connection.receive(lambda: interrupts.wait(connection.socket))
                if isinstance(message, bytes):
                    with interrupts.immediately():
                        on_event(message)
                    continue
                if message and message["type"] in ("progress", "note"):
                    with interrupts.immediately():
                        on_event({"event": message.pop("type"), **message})
                    continue
            except ProtocolError:
                message = None
            except BaseException as error:
                failure = _cancel(connection, interrupts)
                if isinstance(error, KeyboardInterrupt) and failure is not None:
                    # The job reports what it did before.
                    raise decode_error(failure) from None
                raise
            match message or {}:
                case {"type": "accepted"}:
                    accepted = True
                case {"type": "result", "result": dict() as result}:
                    return result
                case dict({"type": "error"}) as failure:
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


def _cancel(connection: JobConnection, interrupts: _Interrupts) -> Message | None:
    """Cancel the job and return its error. Keep reading, so that a job that is blocked while sending can end."""
    deadline = time.monotonic() + CALLER_CANCEL_SECONDS
    try:
        connection.send({"type": "cancel"})
        while True:
            match connection.receive(lambda: interrupts.wait(connection.socket, deadline)):
                case dict({"type": "error"}) as failure:
                    return failure
                case None | {"type": "result" | "refused" | "handover"}:
                    return None
    except (ConnectionError, TimeoutError, ProtocolError):
        return None


class _Interrupts:
    """Turns Ctrl-C during a call into Cancelled, unless SIGINT is ignored or the call is outside the main thread."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._pipe: tuple[int, int] | None = None
        self._previous_handler: Any = None
        self._immediate = False

    def __enter__(self) -> _Interrupts:
        on_main_thread = threading.current_thread() is threading.main_thread()
        if on_main_thread and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            self._pipe = os.pipe()
            os.set_blocking(self._pipe[0], False)
            self._previous_handler = signal.signal(signal.SIGINT, lambda *_: self._interrupted())
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if self._pipe is not None:
            signal.signal(signal.SIGINT, self._previous_handler)
            for end in self._pipe:
                os.close(end)
        if isinstance(error, KeyboardInterrupt):
            raise Cancelled(f"{self._job} was cancelled") from None

    def _interrupted(self) -> None:
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

    def wait(self, sock: socket.socket, deadline: float | None = None) -> None:
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
        if self._pipe is not None:
            with suppress(BlockingIOError):
                os.read(self._pipe[0], 1)
                raise KeyboardInterrupt
