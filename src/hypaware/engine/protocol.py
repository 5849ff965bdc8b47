"""The protocol of the engine's socket: its frames and messages.

A frame is one type byte, four bytes of length (big endian) and the payload: `J`, a JSON object with a
`type`, or `B`, raw result bytes. One connection carries one request.

    engine  → hello {protocol, version, pid}
    caller  → job {job, args, crash_at, run_id} | status | stop {grace}
    engine  → accepted {id}, then progress, note and bytes in the job's order, then result or error
            | refused: the engine is about to end and did not accept the job | handover: see `inline`
    caller  → cancel, at any time; closing the connection has the same effect

`hello`, `status` and `stop` are the same in every protocol version, so that a newer program can stop an engine that an
older one started. An error is sent with the name of its class in `hypaware.errors`.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from hypaware import __version__, errors

PROTOCOL: Final = 1
MAX_FRAME: Final = 64 * 1024 * 1024
_CHUNK: Final = 1024 * 1024
_RECEIVE: Final = 256 * 1024
_HEADER: Final = struct.Struct(">cI")
_JSON: Final = b"J"
_BYTES: Final = b"B"
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
