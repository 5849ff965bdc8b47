"""Send one HTTP request to the server, and classify connection failures.

Redirects are not followed (they would carry rows and tokens elsewhere), nothing is decompressed, no cookie is kept, and
the size of a response is limited. Certificates are always verified, against the system's authorities or SSL_CERT_FILE.
Timeouts measure inactivity: a slow connection may take as long as the body makes progress. Once the whole body is
written, the response has a deadline, so that a server that sends a byte now and then cannot block a stream forever.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Mapping

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from yarl import URL

from hypaware.export.sink import Denied, Unreachable
from hypaware.export.sinks.forward.answers import Answer

# In seconds.
_CONNECT = 10.0
_IDLE = 60.0
_RESPONSE_BYTES = 1 << 20
_SLICE = 256 << 10
# Written bytes stay in the system's buffers for a while; the slowest accepted connection drains them at this rate.
_BYTES_A_SECOND = 64 << 10
# Shorter than servers keep an idle connection (5 s in Node.js), so that no batch is sent on a closing connection.
_KEEP_ALIVE = 4.0


class Wire:
    """Must be created on the event loop that uses it."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        # Loading the certificate authorities takes a while, and a server without TLS does not need them.
        verified = await asyncio.to_thread(ssl.create_default_context) if self._address.startswith("https:") else True
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=verified, limit=0, keepalive_timeout=_KEEP_ALIVE),
            timeout=aiohttp.ClientTimeout(total=None, connect=_CONNECT),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity", "User-Agent": "hypaware"},
            auto_decompress=False,
        )

    async def close(self) -> None:
        session, self._session = self._session, None
        if session:
            await session.close()

    async def request(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None) -> Answer:
        """Send a request. `path` is used literally, including escapes and query."""
        assert self._session, "call open() first"
        url = URL(self._address + path, encoded=True)
        try:
            async with asyncio.timeout(None) as deadline:
                data = _Body(body, deadline) if body else None
                if data is None:
                    _extend(deadline, _CONNECT + _IDLE)
                async with self._session.request(
                    method, url, headers=headers, data=data, allow_redirects=False
                ) as response:
                    received = {name.lower(): value for name, value in response.headers.items()}
                    return Answer(response.status, received, await _bounded(response))
        except aiohttp.ClientConnectorCertificateError as error:
            raise _untrusted(self._address, error.certificate_error) from None
        except (aiohttp.ClientError, OSError) as error:
            # Not `from error`: the library's exception holds the request's headers, which include the token.
            raise Unreachable(f"{self._address} {_what_happened(error)}") from None


class _Body(aiohttp.Payload):
    """A body written in slices; each slice extends the deadline."""

    _autoclose = True

    def __init__(self, data: bytes, deadline: asyncio.Timeout) -> None:
        super().__init__(data)
        self._size = len(data)
        self._deadline = deadline

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        raise TypeError("a request body cannot be decoded")

    async def write(self, writer: AbstractStreamWriter) -> None:
        view = memoryview(self._value)
        for start in range(0, len(view), _SLICE):
            _extend(self._deadline, _IDLE)
            await writer.write(view[start : start + _SLICE])
        _extend(self._deadline, _IDLE + len(view) / _BYTES_A_SECOND)


def _extend(deadline: asyncio.Timeout, seconds: float) -> None:
    # A response can arrive before the body is written; the deadline is then gone.
    with contextlib.suppress(RuntimeError):
        deadline.reschedule(asyncio.get_running_loop().time() + seconds)


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > _RESPONSE_BYTES:
            response.close()
            raise aiohttp.ClientPayloadError("the response is too long")
    return bytes(body)


def _untrusted(address: str, error: Exception) -> Denied:
    reason = getattr(error, "verify_message", None) or str(error)
    return Denied(
        f"the certificate of {address} is not trusted: {reason}",
        kind="certificate",
        repair="check the address; for a private authority: export SSL_CERT_FILE=<its certificate>",
    )


def _what_happened(error: Exception) -> str:
    """Return the rest of a sentence that begins with the address. The library's messages may reveal too much."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "cannot be reached: unknown host name"
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return "cannot be reached: the connection timed out"
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return f"cannot be reached: TLS failed ({getattr(error.os_error, 'reason', None) or 'unknown reason'})"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot be reached: {error.os_error.strerror or 'no connection'}"
    if isinstance(error, TimeoutError):
        return "did not respond in time"
    if isinstance(error, aiohttp.ClientResponseError):
        return "sent a response that is not HTTP"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "sent an incomplete or oversized response"
    return f"closed the connection before its response was complete ({type(error).__name__})"
