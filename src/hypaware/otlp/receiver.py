"""The OTLP receiver: an HTTP server on loopback that stores what exporters send.

    receiver = OtlpReceiver(listener, writer)
    await receiver.start()
    await receiver.stop(grace=5)

It answers when the rows of a request are durable. Requests that a web page may have sent are refused, as the gateway
does. A few requests are handled at a time and some more may wait; beyond that, exporters are told to try again. So are
they while the disk is full.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from http import HTTPStatus

from aiohttp import web
from aiohttp.http_exceptions import TransferEncodingError

from hypaware.engine.background import run_in_thread
from hypaware.errors import HypError, Retryable
from hypaware.gateway.routes import Routes
from hypaware.otlp import wire
from hypaware.otlp.wire import JSON, PROTOBUF, SIGNALS, OtlpProblem, OtlpSignal
from hypaware.otlp.writer import StoredRequest, TelemetryWriter

RETRY_SECONDS = 5
_AT_ONCE = 2
_WAITING = 64
_BODY_SECONDS = 30.0
_IDLE_SECONDS = 75.0
log = logging.getLogger("hypaware.otlp")
# aiohttp quotes malformed requests in its log, so its log is disabled.
_SILENT_LOG = logging.getLogger("hypaware.otlp.aiohttp")
_SILENT_LOG.disabled = True


class OtlpReceiver:
    def __init__(self, listener: socket.socket, writer: TelemetryWriter) -> None:
        self._listener, self._writer = listener, writer
        self._guard = Routes(())
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = False
        self._runner: web.ServerRunner | None = None
        self.last_error: str | None = None
        """Why the last request that failed was refused or not stored."""

    async def start(self) -> None:
        server = web.Server(
            self._handle,
            access_log=None,
            logger=_SILENT_LOG,
            auto_decompress=False,
            keepalive_timeout=_IDLE_SECONDS,
        )
        self._runner = web.ServerRunner(server)
        await self._runner.setup()
        await web.SockSite(self._runner, self._listener).start()

    async def stop(self, grace: float) -> None:
        """Stop listening. Requests that were accepted have `grace` seconds to finish."""
        self._stopping = True
        if self._runner is None:
            self._listener.close()
            return
        for site in list(self._runner.sites):
            await site.stop()
        try:
            async with asyncio.timeout(grace):
                await self._idle.wait()
        except TimeoutError:
            log.warning("%d requests of exporters were not answered", self._open)
        await self._runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        content_type = wire.find_content_type(request.headers)
        self._open += 1
        self._idle.clear()
        try:
            body = await self._answer(request, content_type)
        except OtlpProblem as problem:
            self.last_error = f"{request.path[:40]}: {problem.message}"
            return _build_error(problem, content_type or JSON)
        except Exception as error:
            # A bug of the receiver. The error's text may quote the telemetry, so only its type is logged.
            log.error("a request to the OTLP receiver failed: %s", type(error).__name__)
            self.last_error = f"{request.path[:40]}: {type(error).__name__}"
            return _build_error(OtlpProblem(500, "the receiver failed; nothing was stored"), content_type or JSON)
        finally:
            self._open -= 1
            if not self._open:
                self._idle.set()
        return web.Response(body=body, headers={"Content-Type": content_type or PROTOBUF, "Server": "hypaware"})

    async def _answer(self, request: web.BaseRequest, content_type: str | None) -> bytes:
        if (refusal := self._guard.find_refusal(request.headers.items())) is not None:
            reason = "its Host header names another machine" if refusal == "foreign_host" else "a web page sent it"
            raise OtlpProblem(403, f"the request is refused, because {reason}; use 127.0.0.1 or localhost")
        if (signal := SIGNALS.get(request.path)) is None:
            raise OtlpProblem(404, f"there is nothing here; send OTLP to {', '.join(SIGNALS)}")
        if request.method != "POST":
            raise OtlpProblem(405, "use POST")
        if content_type is None:
            raise OtlpProblem(415, f"Content-Type must be {PROTOBUF} or {JSON}")
        if self._stopping:
            raise OtlpProblem(503, "the receiver is stopping", 1)
        if self._open > _AT_ONCE + _WAITING:
            raise OtlpProblem(429, "too many requests at once", 1)
        if (request.content_length or 0) > wire.MAX_BODY_BYTES:
            raise wire.too_large()
        async with self._slots:
            encoding = request.headers.get("Content-Encoding", "").strip().lower()
            body = await _read_body(request)
            stored = await run_in_thread(lambda: self._store(signal, content_type, encoding, body), "otlp")
        if stored.rejected:
            self.last_error = f"{signal.path}: {stored.rejected} records were rejected: {stored.reason}"
        return wire.encode_response(signal, content_type, stored.rejected, stored.reason)

    def _store(self, signal: OtlpSignal, content_type: str, encoding: str, body: bytes) -> StoredRequest:
        """Decode a request and store it. Runs on a thread of its own."""
        message = wire.decode_request(signal, content_type, encoding, body)
        try:
            return self._writer.write(signal, message)
        except Retryable as error:
            log.warning("cannot store telemetry, the exporter has to try again: %s", error.message)
            raise OtlpProblem(503, "the rows cannot be stored now; nothing was stored", RETRY_SECONDS) from error
        except HypError as error:
            # The spool is closed.
            raise OtlpProblem(503, error.message, RETRY_SECONDS) from error


async def _read_body(request: web.BaseRequest) -> bytes:
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            while piece := await request.content.readany():
                pieces.append(piece)
                size += len(piece)
                if size > wire.MAX_BODY_BYTES:
                    raise wire.too_large()
    except TimeoutError:
        raise OtlpProblem(408, "the body arrived too slowly") from None
    except (ConnectionError, web.RequestPayloadError, TransferEncodingError) as error:
        raise OtlpProblem(400, f"the body ended early: {type(error).__name__}") from None
    return b"".join(pieces)


def _build_error(problem: OtlpProblem, content_type: str) -> web.Response:
    headers = {"Content-Type": content_type, "Server": "hypaware"}
    if problem.retry_after is not None:
        headers["Retry-After"] = str(problem.retry_after)
    if problem.status == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = "POST"
    body = wire.encode_error(content_type, problem.status, problem.message)
    response = web.Response(body=body, status=problem.status, headers=headers)
    # The rest of a body that was not read is not a request.
    response.force_close()
    return response
