"""A real provider over TLS: it speaks all dialects, keeps every request byte for byte, and fails in every way.

In a thread of the test, with a function that returns the response:

    with UpstreamStub(lambda seen: StubResponse(pieces=(b"…",))) as stub:
        stub.url, stub.ca_file, stub.seen

or as a process of its own, which responds in the dialect of the path (`in_dialect`):

    with upstream_process() as stub: …                     # python -m tests.support.upstream_stub --folder F

The HTTP code is written by hand, so that no library changes the bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import gzip
import hashlib
import itertools
import json
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import trustme

from tests.support.processes import PATIENCE

_ROOT = Path(__file__).parents[2]
PROVIDERS = ("api.anthropic.com", "api.openai.com", "chatgpt.com")
"""Its certificate is valid for these too."""
_BLOCK = 1 << 16
_KEPT = 1 << 20

Headers = tuple[tuple[str, str], ...]
EVENT_STREAM: Headers = (("content-type", "text/event-stream; charset=utf-8"), ("request-id", "req_011CTest"))
JSON: Headers = (("content-type", "application/json"), ("request-id", "req_011CTest"))


@dataclass(frozen=True)
class ReceivedRequest:
    connection: int
    """The number of the connection, from 0."""
    head: bytes
    """As received, with its blank line."""
    size: int
    sha256: str
    body: bytes
    """Without its framing; empty if it is larger than 1 MiB."""
    complete: bool = True
    """False if it was truncated."""

    @property
    def method(self) -> str:
        return self.head.split(b" ", 1)[0].decode()

    @property
    def target(self) -> str:
        return self.head.split(b" ", 2)[1].decode()

    @property
    def headers(self) -> list[tuple[str, str]]:
        lines = self.head.decode("latin-1").split("\r\n")[1:-2]
        return [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]

    def header(self, name: str) -> str | None:
        return next((value for found, value in self.headers if found.lower() == name.lower()), None)


@dataclass(frozen=True)
class StubResponse:
    status: int = 200
    reason: str = "OK"
    headers: Headers = EVENT_STREAM
    pieces: Iterable[bytes | threading.Event] = ()
    """Sent one by one; an event is awaited before the next one."""
    framing: Literal["chunked", "length", "close", "none"] = "chunked"
    length: int | None = None
    """Sent instead of the true one."""
    before_body: bool = False
    """Respond without reading the request body."""
    cut: Literal["no", "head", "body"] = "no"
    """Close the connection: before the response, or before the end of its body."""
    then_close: bool = False
    """Close after a complete response without announcing it."""


Responder = Callable[[ReceivedRequest], StubResponse]


def events(*found: tuple[str, dict[str, object]]) -> tuple[bytes, ...]:
    return tuple(f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n".encode() for name, data in found)


def anthropic_events(words: Sequence[str] = ("Hello", " there"), message_id: str = "msg_01Test") -> tuple[bytes, ...]:
    usage = {"input_tokens": 12, "output_tokens": 1}
    message = {"id": message_id, "type": "message", "role": "assistant", "model": "claude-test", "content": []}
    return events(
        ("message_start", {"message": {**message, "stop_reason": None, "usage": usage}}),
        ("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}),
        *(("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": word}}) for word in words),
        ("content_block_stop", {"index": 0}),
        ("message_delta", {"delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": len(words)}}),
        ("message_stop", {}),
    )


def responses_events(words: Sequence[str] = ("Hello", " there"), response_id: str = "resp_01Test") -> tuple[bytes, ...]:
    item = {
        "id": "msg_item_01",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "".join(words)}],
    }
    usage = {"input_tokens": 12, "output_tokens": len(words), "total_tokens": 12 + len(words)}
    return events(
        ("response.created", {"response": {"id": response_id, "status": "in_progress"}}),
        *(("response.output_text.delta", {"output_index": 0, "delta": word}) for word in words),
        ("response.output_item.done", {"output_index": 0, "item": item}),
        ("response.completed", {"response": {"id": response_id, "status": "completed", "usage": usage}}),
    )


def chat_events(words: Sequence[str] = ("Hello", " there"), completion_id: str = "chatcmpl-01") -> tuple[bytes, ...]:
    def chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        found = {"id": completion_id, "object": "chat.completion.chunk", "model": "gpt-test", "choices": [choice]}
        return f"data: {json.dumps(found)}\n\n".encode()

    first = chunk({"role": "assistant", "content": ""})
    return (first, *(chunk({"content": word}) for word in words), chunk({}, "stop"), b"data: [DONE]\n\n")


def document(value: object, status: int = 200, reason: str = "OK", headers: Headers = JSON) -> StubResponse:
    return StubResponse(status, reason, headers, (json.dumps(value).encode(),), framing="length")


def gzipped(answer: StubResponse) -> StubResponse:
    """The same, compressed as by a streaming server: flushed after each chunk."""
    packed: list[bytes | threading.Event] = []
    with tempfile.SpooledTemporaryFile() as file, gzip.GzipFile(fileobj=file, mode="wb") as zipper:
        for piece in answer.pieces:
            if isinstance(piece, threading.Event):
                packed.append(piece)
                continue
            at = file.tell()
            zipper.write(piece)
            zipper.flush()
            file.seek(at)
            packed.append(file.read())
        at = file.tell()
        zipper.close()
        file.seek(at)
        packed.append(file.read())
    headers = (*answer.headers, ("content-encoding", "gzip"))
    return StubResponse(answer.status, answer.reason, headers, packed, answer.framing)


def in_dialect(seen: ReceivedRequest) -> StubResponse:
    """Streamed by default; one document if the request says `"stream": false`."""
    path = seen.target.partition("?")[0]
    streamed = b'"stream": false' not in seen.body and b'"stream":false' not in seen.body
    if seen.method == "HEAD":
        return StubResponse(headers=JSON, framing="none")
    if path.endswith("/v1/messages"):
        whole: dict[str, object] = {
            "id": "msg_01Test",
            "type": "message",
            "role": "assistant",
            "model": "claude-test",
            "content": [{"type": "text", "text": "Hello there"}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 12, "output_tokens": 2},
        }
        return StubResponse(pieces=anthropic_events()) if streamed else document(whole)
    if path.endswith("/responses"):
        return StubResponse(pieces=responses_events()) if streamed else document({"id": "resp_01Test", "output": []})
    if path.endswith("/chat/completions"):
        choice = {"index": 0, "message": {"role": "assistant", "content": "Hello there"}, "finish_reason": "stop"}
        return StubResponse(pieces=chat_events()) if streamed else document({"id": "chatcmpl-01", "choices": [choice]})
    missing = {"type": "error", "error": {"type": "not_found_error", "message": f"no {path}"}}
    return document(missing, 404, "Not Found")


@functools.cache
def authority() -> trustme.CA:
    return trustme.CA()


class UpstreamStub:
    def __init__(self, answer: Responder = in_dialect, *, tls: bool = True, port: int = 0) -> None:
        self.answer = answer
        self.seen: list[ReceivedRequest] = []
        self.sent = 0
        """Bytes of response bodies that were handed to the system."""
        self.received = 0
        """Bytes of request bodies that have arrived, including running requests."""
        self.connections = 0
        self.ended = threading.Semaphore(0)
        """Released when a connection has ended."""
        self._tls, self._port = tls, port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self._open: set[asyncio.StreamWriter] = set()
        self._numbers = itertools.count()
        self._arrival = threading.Condition()

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory()
        self.ca_file = Path(self._folder.name) / "ca.pem"
        authority().cert_pem.write_to_path(str(self.ca_file))
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._folder.cleanup()

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://localhost:{self._port}"

    def client_tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.ca_file))

    def wait_received(self, size: int) -> None:
        with self._arrival:
            assert self._arrival.wait_for(lambda: self.received >= size, timeout=PATIENCE), self.received

    def _receive(self, size: int) -> None:
        with self._arrival:
            self.received += size
            self._arrival.notify_all()

    def close_idle(self) -> None:
        """Close idle connections as a provider does; return when they are closed."""

        async def close() -> None:
            for writer in list(self._open):
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

        asyncio.run_coroutine_threadsafe(close(), self._loop).result()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        context = None
        if self._tls:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            authority().issue_cert("localhost", "127.0.0.1", *PROVIDERS).configure_cert(context)
        server = await asyncio.start_server(self._connected, "127.0.0.1", self._port, ssl=context, limit=1 << 20)
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for writer in list(self._open):
            writer.transport.abort()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        # The event loop closes aborted connections a moment later.
        for _ in range(5):
            await asyncio.sleep(0)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = next(self._numbers)
        self.connections += 1
        self._open.add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while await self._serve_request(number, reader, writer):
                pass
        writer.close()
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await writer.wait_closed()
        self._open.discard(writer)
        self.ended.release()

    async def _serve_request(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        seen = ReceivedRequest(number, head, 0, "", b"")
        answer = self.answer(seen) if b"x-answer-early" in head.lower() else None
        if answer is None or not answer.before_body:
            seen = await self._read_body(seen, reader)
            answer = self.answer(seen)
        self.seen.append(seen)
        return await self._send(answer, writer) and seen.complete

    async def _read_body(self, seen: ReceivedRequest, reader: asyncio.StreamReader) -> ReceivedRequest:
        digest, kept, size = hashlib.sha256(), bytearray(), 0
        try:
            async for block in _body(seen, reader):
                digest.update(block)
                self._receive(len(block))
                size += len(block)
                kept += block if size <= _KEPT else b""
        except asyncio.IncompleteReadError:
            return ReceivedRequest(seen.connection, seen.head, size, digest.hexdigest(), bytes(kept), complete=False)
        return ReceivedRequest(
            seen.connection, seen.head, size, digest.hexdigest(), bytes(kept) if size <= _KEPT else b""
        )

    async def _send(self, answer: StubResponse, writer: asyncio.StreamWriter) -> bool:
        if answer.cut == "head":
            return False
        lines = [f"HTTP/1.1 {answer.status} {answer.reason}", *(f"{name}: {value}" for name, value in answer.headers)]
        if answer.framing == "chunked":
            lines.append("transfer-encoding: chunked")
        elif answer.framing == "length":
            lines.append(f"content-length: {answer.length if answer.length is not None else _size(answer)}")
        writer.write("\r\n".join((*lines, "", "")).encode("latin-1"))
        await writer.drain()
        for piece in answer.pieces:
            if isinstance(piece, threading.Event):
                await asyncio.to_thread(piece.wait)
                continue
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if answer.framing == "chunked" else piece)
            await writer.drain()
            self.sent += len(piece)
        if answer.framing == "chunked" and answer.cut == "no":
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return answer.framing != "close" and answer.cut == "no" and not answer.then_close


def _size(answer: StubResponse) -> int:
    return sum(len(piece) for piece in answer.pieces if isinstance(piece, bytes))


async def _body(seen: ReceivedRequest, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    if (seen.header("transfer-encoding") or "").lower() == "chunked":
        while size := int(await reader.readuntil(b"\r\n"), 16):
            yield await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readuntil(b"\r\n")
        return
    left = int(seen.header("content-length") or 0)
    while left:
        block = await reader.read(min(left, _BLOCK))
        if not block:
            raise asyncio.IncompleteReadError(b"", left)
        left -= len(block)
        yield block


@dataclass(frozen=True)
class StubProcess:
    url: str
    ca_file: Path
    pid: int


@contextmanager
def upstream_process(*options: str) -> Iterator[StubProcess]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.support.upstream_stub", "--folder", folder, *options]
        with subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            yield StubProcess(process.stdout.readline().decode().strip(), Path(folder) / "ca.pem", process.pid)
            process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description="A stub of a provider; it ends with its standard input.")
    parser.add_argument("--folder", type=Path, required=True, help="its authority's certificate is put there")
    parser.add_argument("--port", type=int, default=0)
    chosen = parser.parse_args()
    with UpstreamStub(port=chosen.port) as stub:
        authority().cert_pem.write_to_path(str(chosen.folder / "ca.pem"))
        print(stub.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
