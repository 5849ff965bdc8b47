"""The forward sink: send chunks over HTTP to a HypAware server, each under its own id.

The id makes a chunk arrive once: the server accepts an id a single time, whatever its content, so a chunk whose
response was lost can always be sent again. Headers carry the chunk's range. A server that announces `batches` and
`watermark` can be queried for its chunks; a plain server never is. A server that announces `dedupe` drops rows by their
dedupe keys, under whichever incarnation they arrive.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

import pyarrow as pa

from hypaware.export.encoders import encode_ndjson
from hypaware.export.sink import (
    Chunk,
    ChunkLimits,
    Destination,
    DestinationDenied,
    LinesPayload,
    Payload,
    Sink,
    SinkSettings,
    StreamCoverage,
)
from hypaware.export.sinks.forward import http_client, normalise_url
from hypaware.export.sinks.forward.credentials import ServerCredentials
from hypaware.export.sinks.forward.http_client import HttpClient, ServerResponse
from hypaware.model import datasets
from hypaware.model.columns import ColumnType
from hypaware.state.server_clocks import ServerClock

if TYPE_CHECKING:
    from hypaware.state.streams import StreamKey

_MIN_COMPRESSED_BYTES = 1024
# The best first. Used only if the server announces it, and not on loopback: there an uncompressed body of 4.8 MB costs
# the sender 6 ms, with zstd 11 ms and with gzip 30 ms. Over a network compression wins: zstd leaves a sixth.
_ENCODINGS = ("zstd", "gzip")
# The contract's name for the rows of a dataset, if it differs from the dataset's name.
_SIGNALS = {"ai_gateway_messages": "proxy"}
CONTRACT_LIMITS = ChunkLimits(rows=5_000, bytes=4 << 20)


@dataclass(frozen=True)
class ServerCapabilities:
    server_id: str | None = None
    extensions: frozenset[str] = frozenset()
    encodings: frozenset[str] = frozenset()
    limits: ChunkLimits = CONTRACT_LIMITS


@dataclass(frozen=True)
class PackedLines(LinesPayload):
    """The lines of one chunk, and the body of the request that sends them."""

    body: bytes
    encoding: str | None
    digest: str
    """SHA-256 of the lines before compression."""


class ForwardSink(Sink):
    keeps_ids = True

    def __init__(
        self,
        settings: SinkSettings,
        *,
        compress: bool | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`compress`: whether to compress if the server supports it; by default unless it runs on this machine."""
        self._settings = settings
        self._now = now
        self._address = normalise_url(settings.options["url"])
        self._compress = compress if compress is not None else not _is_loopback(self._address)
        self._host = socket.gethostname()
        self._http = HttpClient(self._address)
        self._credentials = ServerCredentials(settings, self._address, self._host, self._http)
        self._server = ServerCapabilities()
        self.limits: ChunkLimits = self._server.limits

    async def open(self) -> Destination:
        await self._http.open()
        try:
            response = await self._http.request("GET", "/v1/capabilities", {}, credentials=self._credentials)
            if response.is_success:
                self._server = parse_capabilities(response.document)
                self.limits = self._server.limits
            # A failing server is not necessarily a plain one; any other response means a plain server.
            elif response.status in (401, 408, 425, 429) or (response.status >= 500 and response.status != 501):
                raise self._error(response)
        except BaseException:
            await self._http.close()
            raise
        return Destination(self._address, self._server.server_id, self._read_clock(response))

    def _read_clock(self, response: ServerResponse) -> ServerClock | None:
        date = http_client.parse_http_date(response.headers.get("date", ""))
        host = urlsplit(self._address).hostname or ""
        return None if date is None else ServerClock(host, self._now(), datetime.fromtimestamp(date, UTC))

    async def close(self) -> None:
        await self._http.close()

    def encode(self, rows: pa.Table) -> Payload:
        return encode_ndjson(rows, self._json_columns)

    async def has_chunk(self, chunk: Chunk) -> bool | None:
        if "batches" not in self._server.extensions:
            return None
        batch = f"batches/{quote(chunk.id, safe='')}"
        return await self._query(chunk.stream, chunk.gateway_id, chunk.incarnation, batch) is not None

    async def coverage(self, stream: StreamKey, gateway_id: str, incarnation: str) -> StreamCoverage | None:
        if "watermark" not in self._server.extensions:
            return None
        which = urlencode({"source": stream.source, "incarnation": incarnation}, quote_via=quote)
        response = await self._query(stream, gateway_id, incarnation, f"watermark?{which}")
        return http_client.read_coverage(response, "last") if response else StreamCoverage(0)

    def drops_known_rows(self) -> bool:
        return "dedupe" in self._server.extensions

    async def _query(self, stream: StreamKey, gateway_id: str, incarnation: str, what: str) -> ServerResponse | None:
        """Query the server about a stream; None if it responds that there is no such thing."""
        path = f"{_ingest_path(stream)}/{what}"
        headers = _identity_headers(gateway_id, incarnation)
        response = await self._http.request("GET", path, headers, credentials=self._credentials)
        if response.is_success:
            return response
        # A server that knows the contract sends no body, or an error in its format.
        if response.status == 404 and (not response.body or response.kind not in (None, "unknown_signal")):
            return None
        raise self._error(response, stream)

    def pack(self, payload: Payload) -> PackedLines:
        assert isinstance(payload, LinesPayload)
        body = b"".join(payload.lines)
        digest = hashlib.sha256(body).hexdigest()
        announced = self._server.encodings if self._compress and len(body) >= _MIN_COMPRESSED_BYTES else ()
        encoding = next((name for name in _ENCODINGS if name in announced), None)
        if encoding == "zstd":
            # The frame header holds the size, so that a receiver can refuse a large body before decompressing it.
            body = pa.Codec("zstd", compression_level=1).compress(body, asbytes=True)
        elif encoding == "gzip":
            compressor = zlib.compressobj(level=1, wbits=31)
            body = compressor.compress(body) + compressor.flush()
        return PackedLines(payload.lines, body, encoding, digest)

    async def ship(self, chunk: Chunk, payload: Payload, acked_to: int) -> int:
        # On a thread, because all streams share the event loop.
        packed = payload if isinstance(payload, PackedLines) else await asyncio.to_thread(self.pack, payload)
        headers = {
            "Content-Type": "application/x-ndjson",
            "X-Hyp-Batch-Id": chunk.id,
            **_identity_headers(chunk.gateway_id, chunk.incarnation),
            "X-Hyp-Source": quote(chunk.stream.source, safe=""),
            "X-Hyp-Seq-Range": f"{chunk.after}-{chunk.last}",
            "X-Hyp-Acked-To": str(acked_to),
            "X-Hyp-Content-Sha256": packed.digest,
            "X-Hyp-Host": quote(self._host, safe=""),
        }
        if packed.encoding:
            headers["Content-Encoding"] = packed.encoding
        path = _ingest_path(chunk.stream)
        response = await self._http.request("POST", path, headers, packed.body, self._credentials)
        if not response.is_success:
            raise self._error(response, chunk.stream, has_chunk=True)
        return len(packed.body)

    def _error(
        self, response: ServerResponse, stream: StreamKey | None = None, *, has_chunk: bool = False
    ) -> Exception:
        response = response.without(self._credentials.secrets)
        if response.status == 401:
            return DestinationDenied(
                f"{self._address} rejects even a new token of the sink {self._settings.name}: {response.summary}",
                kind="token_refused",
                repair="hyp server token list, on the server",
            )
        if response.status == 404 and stream:
            return DestinationDenied(
                f"{self._address} does not accept the dataset {stream.dataset}: it responded with {response.summary}",
                kind=response.kind or "not_found",
                repair=f"remove {stream.dataset} from sinks.{stream.sink}.datasets, or check the url of that sink",
            )
        return http_client.to_sink_error(response, has_chunk=has_chunk)

    @cached_property
    def _json_columns(self) -> frozenset[str]:
        """Columns that are JSON in every dataset of the sink: a table does not name its dataset."""
        columns = [column for name in self._settings.datasets for column in datasets.get(name).columns]
        other = {column.name for column in columns if column.type is not ColumnType.JSON}
        return frozenset(column.name for column in columns) - other


def _ingest_path(stream: StreamKey) -> str:
    return f"/v1/ingest/{quote(_SIGNALS.get(stream.dataset, stream.dataset), safe='')}"


def _identity_headers(gateway_id: str, incarnation: str) -> dict[str, str]:
    return {"X-Hyp-Gateway": quote(gateway_id, safe=""), "X-Hyp-Incarnation": incarnation}


def _is_loopback(address: str) -> bool:
    host = urlsplit(address).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def parse_capabilities(document: dict[str, Any] | None) -> ServerCapabilities:
    """Parse the response of `GET /v1/capabilities`.

        {"server", "server_id", "api": 1, "extensions": […], "encodings": […], "limits": {…}}

    Any other document, or an unknown `api`, means a plain server: no extension is used, which is always safe. A field
    of the wrong type counts as absent.
    """
    if document is None or document.get("api") != 1 or not isinstance(document.get("extensions"), list):
        return ServerCapabilities()
    server_id, limits = document.get("server_id"), document.get("limits")
    announced = limits if isinstance(limits, dict) else {}
    return ServerCapabilities(
        server_id=server_id if isinstance(server_id, str) and server_id else None,
        extensions=_string_set(document["extensions"]),
        encodings=_string_set(document.get("encodings")),
        limits=ChunkLimits(
            rows=_smaller(CONTRACT_LIMITS.rows, announced.get("max_rows")),
            bytes=_smaller(CONTRACT_LIMITS.bytes, announced.get("max_body_bytes")),
        ),
    )


def _string_set(value: Any) -> frozenset[str]:
    return frozenset(item for item in value if isinstance(item, str)) if isinstance(value, list) else frozenset()


def _smaller(ours: int, theirs: Any) -> int:
    return min(ours, theirs) if type(theirs) is int and theirs > 0 else ours
