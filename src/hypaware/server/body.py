"""Request bodies: read within limits of size and time, decompressed within a limit of size."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import orjson
from aiohttp import web
from aiohttp.http_exceptions import TransferEncodingError
from aiohttp.web_exceptions import HTTPException

from hypaware.server.limits import Limits
from hypaware.server.problem import Problem, bad_request
from hypaware.server.throttle import Share

_READ_BYTES = 1 << 20
_MAX_JSON = 16 << 10


async def received(request: web.Request, limits: Limits, reservation: Share) -> bytes:
    """Read the whole body, reserving memory as it arrives."""
    limit = limits.max_body_bytes
    if (request.content_length or 0) > limit:
        raise too_large(limit)
    loop = asyncio.get_running_loop()
    end = loop.time() + limits.body_seconds
    pieces: list[bytes] = []
    try:
        async with asyncio.timeout_at(min(end, loop.time() + limits.idle_seconds)) as timeout:
            while piece := await request.content.readany():
                pieces.append(piece)
                size = reservation.bytes + len(piece)
                if size > limit:
                    raise too_large(limit)
                reservation.grow_to(size)
                timeout.reschedule(min(end, loop.time() + limits.idle_seconds))
    except TimeoutError:
        raise Problem(408, "body_too_slow") from None
    except (ConnectionError, web.RequestPayloadError, TransferEncodingError) as error:
        raise bad_request("body_incomplete", type(error).__name__) from None
    return b"".join(pieces)


async def json_object(request: web.Request, seconds: float) -> dict[str, Any]:
    """Read a small JSON body."""
    if (request.content_length or 0) > _MAX_JSON:
        raise too_large(_MAX_JSON)
    try:
        async with asyncio.timeout(seconds):
            raw = await request.content.read(_MAX_JSON + 1)
            while len(raw) <= _MAX_JSON and (piece := await request.content.read(_MAX_JSON + 1)):
                raw += piece
    except TimeoutError:
        raise Problem(408, "body_too_slow") from None
    except (ConnectionError, HTTPException, web.RequestPayloadError) as error:
        raise bad_request("body_incomplete", type(error).__name__) from None
    if len(raw) > _MAX_JSON:
        raise too_large(_MAX_JSON)
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise bad_request("bad_json", "the body is not a JSON object")
    return value


def unpacked(body: bytes, encoding: str | None, limit: int) -> bytes:
    """Decompress the body. Stop at `limit` bytes, so that a decompression bomb does not fill the memory."""
    if encoding is None:
        return body
    if not body:
        return b""
    # Import pyarrow on first use: it is large, and most of it is not needed here.
    pa = _pyarrow()
    pieces: list[bytes] = []
    size = 0
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), encoding) as stream:
            while piece := stream.read(_READ_BYTES):
                pieces.append(piece)
                size += len(piece)
                if size > limit:
                    raise too_large(limit)
    except OSError as error:
        raise bad_request("bad_encoding", f"the body is not {encoding}: {error}") from None
    return b"".join(pieces)


def too_large(limit: int) -> Problem:
    return Problem(413, "body_too_large", limit=limit)


@functools.cache
def _pyarrow() -> Any:
    import pyarrow

    return pyarrow
