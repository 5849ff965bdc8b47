"""One exchange with the server over HTTP, and what it means when there is no answer.

Nothing is followed (a redirect would carry rows and tokens elsewhere), nothing is decompressed, no cookie is kept, and
an answer is read up to a bound. Certificates are always verified, against the system's authorities or SSL_CERT_FILE.
Time runs by inactivity: a slow line may take as long as something of the body moves. Once all of it is handed over,
the whole answer has an end, so that a server that lets a byte drop now and then does not hold a stream for ever.
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
_ANSWER_BYTES = 1 << 20
_SLICE = 256 << 10
# What is handed over lies in the system's buffers for a while; the slowest line that we wait for empties them so fast.
_BYTES_A_SECOND = 64 << 10
# Below what servers keep an idle connection for (5 s in Node.js): we let go first, so that no batch meets the closing.
_KEEP_ALIVE = 4.0


class Wire:
    """Made on the loop that it is used on."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        # Loading the authorities takes a while, and is of no use to a server without TLS.
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

    async def ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None) -> Answer:
        """`path` is as it goes over the wire, escapes and query included."""
        assert self._session, "the wire is not open"
        url = URL(self._address + path, encoded=True)
        try:
            async with asyncio.timeout(None) as ending:
                data = _Body(body, ending) if body else None
                if data is None:
                    _extend(ending, _CONNECT + _IDLE)
                async with self._session.request(
                    method, url, headers=headers, data=data, allow_redirects=False
                ) as response:
                    told = {name.lower(): value for name, value in response.headers.items()}
                    return Answer(response.status, told, await _bounded(response))
        except aiohttp.ClientConnectorCertificateError as error:
            raise _untrusted(self._address, error.certificate_error) from None
        except (aiohttp.ClientError, OSError) as error:
            # Not `from error`: what the library raises carries the request's headers, and the token among them.
            raise Unreachable(f"{self._address} {_what_happened(error)}") from None


class _Body(aiohttp.Payload):
    """Written in slices, each of which is a sign of life that puts off the end."""

    _autoclose = True

    def __init__(self, data: bytes, ending: asyncio.Timeout) -> None:
        super().__init__(data)
        self._size = len(data)
        self._ending = ending

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        raise TypeError("a body is only written")

    async def write(self, writer: AbstractStreamWriter) -> None:
        view = memoryview(self._value)
        for start in range(0, len(view), _SLICE):
            _extend(self._ending, _IDLE)
            await writer.write(view[start : start + _SLICE])
        _extend(self._ending, _IDLE + len(view) / _BYTES_A_SECOND)


def _extend(ending: asyncio.Timeout, seconds: float) -> None:
    # An answer can come before the body is through; there is no end to put off any more then.
    with contextlib.suppress(RuntimeError):
        ending.reschedule(asyncio.get_running_loop().time() + seconds)


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    taken = bytearray()
    async for piece in response.content.iter_any():
        taken += piece
        if len(taken) > _ANSWER_BYTES:
            response.close()
            raise aiohttp.ClientPayloadError("the answer is too long")
    return bytes(taken)


def _untrusted(address: str, error: Exception) -> Denied:
    reason = getattr(error, "verify_message", None) or str(error)
    return Denied(
        f"the certificate of {address} cannot be trusted: {reason}",
        kind="certificate",
        repair="check the address; for an authority of your own: export SSL_CERT_FILE=<its certificate>",
    )


def _what_happened(error: Exception) -> str:
    """Ends a sentence that begins with the address. The libraries' own words may hold more than we want to show."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "cannot be found by its name"
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return "cannot be reached: no connection in time"
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return f"cannot be reached: TLS failed ({getattr(error.os_error, 'reason', None) or 'no reason given'})"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot be reached: {error.os_error.strerror or 'no connection'}"
    if isinstance(error, TimeoutError):
        return "did not answer in time"
    if isinstance(error, aiohttp.ClientResponseError):
        return "answered with something that is not HTTP"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "answered with less or more than it may"
    return f"cut the connection before its answer was here ({type(error).__name__})"
