"""The forward sink: send chunks over HTTP to a HypAware server, each under its own id.

The id makes a chunk arrive once: the server accepts an id a single time, whatever its content, so a chunk whose
response was lost can always be sent again. Headers carry the chunk's range. A server that announces `batches` and
`watermark` can be queried for its chunks; a plain server never is.
"""

from __future__ import annotations

import socket
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from hypaware.export import ndjson
from hypaware.export.payload import Lines, Payload
from hypaware.export.sink import Chunk, Delivered, Denied, Destination, Limits, Sink, SinkSettings
from hypaware.export.sinks.forward import address, answers, capabilities, packing
from hypaware.export.sinks.forward.answers import Answer
from hypaware.export.sinks.forward.capabilities import Capabilities
from hypaware.export.sinks.forward.credentials import Credentials
from hypaware.export.sinks.forward.wire import Wire
from hypaware.model import datasets
from hypaware.model.columns import Type

if TYPE_CHECKING:
    import pyarrow as pa

    from hypaware.state.stream_key import StreamKey

# The contract's name for the rows of a dataset, if it differs from the dataset's name.
_SIGNALS = {"ai_gateway_messages": "proxy"}


class ForwardSink(Sink):
    def __init__(self, settings: SinkSettings, *, compress: bool | None = None) -> None:
        """`compress`: whether to compress if the server supports it; by default unless it runs on this machine."""
        self._settings = settings
        self._address = address.normalised(settings.options["url"])
        self._compress = compress if compress is not None else not address.is_loopback(self._address)
        self._host = socket.gethostname()
        self._http = Wire(self._address)
        self._credentials = Credentials(settings, self._address, self._host, self._http.request)
        self._server = capabilities.PLAIN
        self.limits: Limits = self._server.limits

    async def open(self) -> Destination:
        await self._http.open()
        try:
            self._server = await self._read_capabilities()
            self.limits = self._server.limits
        except BaseException:
            await self._http.close()
            raise
        return Destination(self._address, self._server.server_id)

    async def close(self) -> None:
        await self._http.close()

    def encode(self, rows: pa.Table) -> Payload:
        return ndjson.encode(rows, self._json_columns)

    async def has_chunk(self, chunk: Chunk) -> bool | None:
        if "batches" not in self._server.extensions:
            return None
        path = f"{_ingest_path(chunk.stream)}/batches/{quote(chunk.id, safe='')}"
        answer = await self._request("GET", path, _whose(chunk.gateway_id, chunk.incarnation))
        if answer.is_success:
            return True
        if answer.is_not_found and answer.kind != "unknown_signal":
            return False
        raise self._error(answer, chunk.stream)

    async def coverage(self, stream: StreamKey, gateway_id: str, incarnation: str) -> Delivered | None:
        if "watermark" not in self._server.extensions:
            return None
        which = urlencode({"source": stream.source, "incarnation": incarnation}, quote_via=quote)
        path = f"{_ingest_path(stream)}/watermark?{which}"
        answer = await self._request("GET", path, _whose(gateway_id, incarnation))
        if answer.is_success:
            return answers.read_delivered(answer, "last")
        if answer.is_not_found and answer.kind != "unknown_signal":
            return Delivered(0)
        raise self._error(answer, stream)

    async def ship(self, chunk: Chunk, payload: Payload, acked_to: int) -> int:
        assert isinstance(payload, Lines)
        encoding = packing.best_encoding(self._server.encodings) if self._compress else None
        body = await packing.pack(payload.lines, encoding)
        headers = {
            "Content-Type": "application/x-ndjson",
            "X-Hyp-Batch-Id": chunk.id,
            **_whose(chunk.gateway_id, chunk.incarnation),
            "X-Hyp-Source": quote(chunk.stream.source, safe=""),
            "X-Hyp-Seq-Range": f"{chunk.after}-{chunk.last}",
            "X-Hyp-Acked-To": str(acked_to),
            "X-Hyp-Content-Sha256": body.sha256,
            "X-Hyp-Host": quote(self._host, safe=""),
        }
        if body.encoding:
            headers["Content-Encoding"] = body.encoding
        answer = await self._request("POST", _ingest_path(chunk.stream), headers, body.data)
        if not answer.is_success:
            raise answers.refusal(self._redacted(answer)) or self._error(answer, chunk.stream)
        return len(body.data)

    async def _request(self, method: str, path: str, headers: dict[str, str], body: bytes | None = None) -> Answer:
        """Send the request with the token, and once more with a new token if the server rejects it."""
        token = await self._credentials.get_token()
        answer = await self._http.request(method, path, headers | _bearing(token), body)
        if answer.status == 401:
            token = await self._credentials.replace_token(token)
            answer = await self._http.request(method, path, headers | _bearing(token), body)
        return answer

    async def _read_capabilities(self) -> Capabilities:
        answer = await self._request("GET", "/v1/capabilities", {})
        if answer.is_success:
            return capabilities.read(answer.document)
        # A failing server is not necessarily a plain one; any other response means a plain server.
        if answer.status in (401, 408, 425, 429) or (answer.status >= 500 and answer.status != 501):
            raise self._error(answer)
        return capabilities.PLAIN

    def _redacted(self, answer: Answer) -> Answer:
        return answer.without(self._credentials.secrets)

    def _error(self, answer: Answer, stream: StreamKey | None = None) -> Exception:
        answer = self._redacted(answer)
        if answer.status == 401:
            return Denied(
                f"{self._address} rejects even a new token of the sink {self._settings.name}: {answer.summary}",
                kind="token_refused",
                repair="hyp server token list, on the server",
            )
        if answer.status == 404 and stream:
            return Denied(
                f"{self._address} does not accept the dataset {stream.dataset}: it responded with {answer.summary}",
                kind=answer.kind or "not_found",
                repair=f"remove {stream.dataset} from sinks.{stream.sink}.datasets, or check the url of that sink",
            )
        return answers.trouble(answer)

    @cached_property
    def _json_columns(self) -> frozenset[str]:
        """Columns that are JSON in every dataset of the sink: a table does not name its dataset."""
        columns = [column for name in self._settings.datasets for column in datasets.get(name).columns]
        other = {column.name for column in columns if column.type is not Type.JSON}
        return frozenset(column.name for column in columns) - other


def _ingest_path(stream: StreamKey) -> str:
    return f"/v1/ingest/{quote(_SIGNALS.get(stream.dataset, stream.dataset), safe='')}"


def _whose(gateway_id: str, incarnation: str) -> dict[str, str]:
    return {"X-Hyp-Gateway": quote(gateway_id, safe=""), "X-Hyp-Incarnation": incarnation}


def _bearing(token: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}
