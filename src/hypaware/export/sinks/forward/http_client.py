"""Send one HTTP request to the server, and interpret its response.

| status | meaning |
|---|---|
| 200, 201, 202, 204 | accepted; but never an HTML page, whatever its status (a proxy or a login page responded) |
| 400, 413, 422 | ChunkRefused: the chunk can never be accepted |
| 401, 403, 404, redirects, other 4xx | DestinationDenied: a user must act |
| 409 `range_overlap` | RangeOverlap; any other 409 is ChunkRefused |
| 429, 503 | DestinationBusy, for as long as a positive Retry-After says |
| 408, 425, other 5xx, anything else | DestinationUnreachable: says nothing about the chunk |

Redirects are not followed (they would carry rows and tokens elsewhere), nothing is decompressed, no cookie is kept, and
the size of a response is limited. Certificates are always verified, against the system's authorities and SSL_CERT_FILE.
The proxy variables (`HTTPS_PROXY`, `NO_PROXY`, …) of the engine's environment apply, except on this machine.
Timeouts measure inactivity while the body is written; after that the response has a deadline. Text from a server is
shown cut to 300 characters, without control characters and without our secrets, which a careless server may echo.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import Any, Protocol

import aiohttp
import orjson
from aiohttp.abc import AbstractStreamWriter
from yarl import URL

from hypaware.export.sink import (
    ChunkRefused,
    DestinationBusy,
    DestinationDenied,
    DestinationUnreachable,
    RangeOverlap,
    StreamCoverage,
)
from hypaware.gateway.routes import OutboundProxy, build_tls_context, find_proxy

_MAX_SHOWN = 300
_SUCCESS = (200, 201, 202, 204)
_REFUSED = (400, 409, 413, 422)
_BUSY = (429, 503)
_INCONCLUSIVE = (408, 425)
_KIND = re.compile(r"[a-z][a-z0-9_]{0,59}")
# Longer than any real delay, and short enough to add to a time.
_LONGEST_WAIT = 10**9
_FAILURES: dict[type[Exception], str] = {
    aiohttp.ClientConnectorDNSError: "cannot be reached: unknown host name",
    aiohttp.ConnectionTimeoutError: "cannot be reached: the connection timed out",
    TimeoutError: "did not respond in time",
    aiohttp.ClientHttpProxyError: "cannot be reached through the proxy: it refused the connection",
    aiohttp.ClientResponseError: "sent a response that is not HTTP",
    aiohttp.ClientPayloadError: "sent an incomplete or oversized response",
}
# In seconds.
_CONNECT = 10.0
_IDLE = 60.0
_RESPONSE_BYTES = 1 << 20
_SLICE = 256 << 10
# Written bytes stay in the system's buffers for a while; the slowest accepted connection drains them at this rate.
_BYTES_A_SECOND = 64 << 10
# Shorter than servers keep an idle connection (5 s in Node.js), so that no batch is sent on a closing connection.
_KEEP_ALIVE = 4.0


class Credentials(Protocol):
    """What a server accepts a request by."""

    async def get_token(self) -> str | None: ...

    async def replace_token(self, rejected: str | None) -> str:
        """Return another token after the server rejected this one."""
        ...


class HttpClient:
    """Must be created on the event loop that uses it."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._session: aiohttp.ClientSession | None = None
        self._proxy: OutboundProxy | None = None

    async def open(self) -> None:
        # Loading the certificate authorities takes a while, and a server without TLS does not need them.
        secure = self._address.startswith("https:")
        verified = await asyncio.to_thread(build_tls_context, os.environ) if secure else True
        self._proxy = find_proxy(self._address, os.environ)
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

    async def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        credentials: Credentials | None = None,
    ) -> ServerResponse:
        """Send a request, with the token of the credentials, and once more with a new one if the server rejects it.

        `path` is used literally, including escapes and query.
        """
        assert self._session, "call open() first"
        url = URL(self._address + path, encoded=True)
        proxy = self._proxy
        via: dict[str, Any] = {"proxy": proxy.url, "proxy_headers": proxy.headers} if proxy else {}
        if proxy and url.scheme == "http":
            # Only a tunnel has headers of its own.
            headers = {**headers, **proxy.headers}
        token = await credentials.get_token() if credentials else None
        while True:
            sent = {**headers, "Authorization": f"Bearer {token}"} if token else headers
            with self._failures_translated():
                async with asyncio.timeout(None) as deadline:
                    data = _Body(body, deadline) if body else None
                    if data is None:
                        _extend(deadline, _CONNECT + _IDLE)
                    async with self._session.request(
                        method, url, headers=sent, data=data, allow_redirects=False, **via
                    ) as response:
                        received = {name.lower(): value for name, value in response.headers.items()}
                        answer = ServerResponse(response.status, received, await _read_body(response))
            if answer.status != 401 or credentials is None:
                return answer
            token, credentials = await credentials.replace_token(token), None

    @contextmanager
    def _failures_translated(self) -> Iterator[None]:
        try:
            yield
        except aiohttp.ClientConnectorCertificateError as error:
            reason = getattr(error.certificate_error, "verify_message", None) or str(error.certificate_error)
            raise DestinationDenied(
                f"the certificate of {self._address} is not trusted: {reason}",
                kind="certificate",
                repair="check the address; for a private authority: export SSL_CERT_FILE=<its certificate>",
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            # Not `from error`: the library's exception holds the request's headers, which include the token.
            raise DestinationUnreachable(f"{self._address} {_describe_failure(error)}") from None


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
    with suppress(RuntimeError):
        deadline.reschedule(asyncio.get_running_loop().time() + seconds)


async def _read_body(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > _RESPONSE_BYTES:
            response.close()
            raise aiohttp.ClientPayloadError("the response is too long")
    return bytes(body)


def _describe_failure(error: Exception) -> str:
    """Return the rest of a sentence that begins with the address. The library's messages may reveal too much."""
    for kind, failure in _FAILURES.items():
        if isinstance(error, kind):
            return failure
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return f"cannot be reached: TLS failed ({getattr(error.os_error, 'reason', None) or 'unknown reason'})"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot be reached: {error.os_error.strerror or 'no connection'}"
    return f"closed the connection before its response was complete ({type(error).__name__})"


@dataclass(frozen=True)
class ServerResponse:
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes

    @cached_property
    def document(self) -> dict[str, Any] | None:
        """The JSON object in the body, if it is one."""
        try:
            value = orjson.loads(self.body)
        except ValueError:
            return None
        return value if isinstance(value, dict) else None

    @property
    def kind(self) -> str | None:
        """The server's code of the error."""
        kind = self.document.get("error") if self.document else None
        return kind if isinstance(kind, str) and _KIND.fullmatch(kind) else None

    @property
    def is_success(self) -> bool:
        return self.status in _SUCCESS and not self.is_html

    @property
    def is_html(self) -> bool:
        return self.headers.get("content-type", "").lower().startswith("text/html")

    @property
    def summary(self) -> str:
        """`422 bad_row: line 3 …`"""
        words = " ".join(filter(None, (str(self.status), self.kind)))
        shown = ""
        if self.is_html:
            shown = "an HTML page"
        elif self.document is None:
            shown = self.body.decode("utf-8", "replace")
        elif rest := {key: value for key, value in self.document.items() if key != "error" or self.kind is None}:
            texts = [rest[key] for key in ("detail", "message", "reason") if isinstance(rest.get(key), str)]
            shown = texts[0] if texts else orjson.dumps(rest).decode()
            if texts and type(rest.get("line")) is int:
                shown = f"line {rest['line']}: {shown}"
        shown = printable(shown)
        return f"{words}: {shown}"[:_MAX_SHOWN] if shown else words

    @property
    def message(self) -> str:
        return f"the server responded with {self.summary}"

    def without(self, secrets: Iterable[str]) -> ServerResponse:
        body, headers = self.body, self.headers
        for secret in secrets:
            body = body.replace(secret.encode(), b"***")
            headers = {name: value.replace(secret, "***") for name, value in headers.items()}
        return replace(self, body=body, headers=headers)


def printable(text: str) -> str:
    shown = "".join(char if char.isprintable() else " " for char in text[: 4 * _MAX_SHOWN])
    return " ".join(shown.split())[:_MAX_SHOWN]


def to_sink_error(response: ServerResponse, *, has_chunk: bool = False) -> Exception:
    """Return the error of a failed request; `has_chunk` says whether it sent a chunk."""
    if has_chunk and response.status == 409 and response.kind == "range_overlap":
        return RangeOverlap(read_coverage(response, "covered_to"))
    if has_chunk and response.status in _REFUSED:
        return ChunkRefused(response.message)
    if response.status in _BUSY:
        return DestinationBusy(response.message, retry_after(response.headers))
    if 300 <= response.status < 400:
        target = printable(response.headers.get("location", "an unnamed address"))
        return DestinationDenied(
            f"the server redirects to {target}; rows and tokens are only sent to the configured address",
            kind="redirected",
            repair="hyp config set sinks.<name>.url <actual address>",
        )
    if 400 <= response.status < 500 and response.status not in _INCONCLUSIVE:
        return DestinationDenied(response.message, kind=response.kind or f"http_{response.status}")
    return DestinationUnreachable(response.message)


def read_coverage(response: ServerResponse, key: str) -> StreamCoverage:
    """Read a watermark, and the holes below it if there are any."""
    document = response.document or {}
    try:
        last = _parse_sequence(document[key])
        holes = tuple((_parse_sequence(after), _parse_sequence(end)) for after, end in document.get("holes") or ())
        if any(after >= end or end > last for after, end in holes):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise DestinationUnreachable(
            f"the server responded with {response.status}, but without a valid {key}"
        ) from None
    return StreamCoverage(last, holes)


def _parse_sequence(value: Any) -> int:
    """Parse a sequence; above 2^53 it is sent as text."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        value = int(value)
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError
    return value


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the delay in seconds, if it is positive. A date is compared with the server's own clock if it is known."""
    text = headers.get("retry-after", "").strip()
    try:
        seconds = float(text) if text.isascii() else 0.0
    except ValueError:
        until, now = parse_http_date(text), parse_http_date(headers.get("date", ""))
        seconds = 0.0 if until is None else until - (now if now is not None else time.time())
    # Compared in this direction, a NaN is no delay either.
    return min(seconds, _LONGEST_WAIT) if seconds > 0 else None


def parse_http_date(http_date: str) -> float | None:
    try:
        return parsedate_to_datetime(http_date).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
