"""The forward sink: chunks over HTTP to a HypAware server, each under its own id.

A chunk's id is what makes it land once: the server takes an id a single time, whatever comes under it, so that a
chunk whose answer was lost can always be sent again. Its range travels beside it in headers; a server that announces
`batches` and `watermark` can be asked what it has, a plain one never is.
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

# What the contract calls the rows of a dataset, where it is not the dataset's name.
_SIGNALS = {"ai_gateway_messages": "proxy"}


class ForwardSink(Sink):
    def __init__(self, settings: SinkSettings, *, compress: bool | None = None) -> None:
        """`compress`: whether to, where the server takes it; by default unless it is on this machine."""
        self._settings = settings
        self._address = address.normalised(settings.options["url"])
        self._compress = compress if compress is not None else not address.is_loopback(self._address)
        self._host = socket.gethostname()
        self._wire = Wire(self._address)
        self._credentials = Credentials(settings, self._address, self._host, self._wire.ask)
        self._server = capabilities.PLAIN
        self.limits: Limits = self._server.limits

    async def open(self) -> Destination:
        await self._wire.open()
        try:
            self._server = await self._capabilities()
            self.limits = self._server.limits
        except BaseException:
            await self._wire.close()
            raise
        return Destination(self._address, self._server.server_id)

    async def close(self) -> None:
        await self._wire.close()

    def encode(self, rows: pa.Table) -> Payload:
        return ndjson.encode(rows, self._json_columns)

    async def landed(self, chunk: Chunk) -> bool | None:
        if "batches" not in self._server.extensions:
            return None
        path = f"{_ingest_path(chunk.stream)}/batches/{quote(chunk.id, safe='')}"
        answer = await self._ask("GET", path, _whose(chunk.gateway_id, chunk.incarnation))
        if answer.is_taken:
            return True
        if answer.is_absent and answer.kind != "unknown_signal":
            return False
        raise self._trouble(answer, chunk.stream)

    async def delivered(self, stream: StreamKey, gateway_id: str, incarnation: str) -> Delivered | None:
        if "watermark" not in self._server.extensions:
            return None
        which = urlencode({"source": stream.source, "incarnation": incarnation}, quote_via=quote)
        path = f"{_ingest_path(stream)}/watermark?{which}"
        answer = await self._ask("GET", path, _whose(gateway_id, incarnation))
        if answer.is_taken:
            return answers.read_delivered(answer, "last")
        if answer.is_absent and answer.kind != "unknown_signal":
            return Delivered(0)
        raise self._trouble(answer, stream)

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
        answer = await self._ask("POST", _ingest_path(chunk.stream), headers, body.data)
        if not answer.is_taken:
            raise answers.refusal(self._shown(answer)) or self._trouble(answer, chunk.stream)
        return len(body.data)

    async def _ask(self, method: str, path: str, headers: dict[str, str], body: bytes | None = None) -> Answer:
        """With the token, and with a new one if the server does not take it."""
        token = await self._credentials.bearer()
        answer = await self._wire.ask(method, path, headers | _bearing(token), body)
        if answer.status == 401:
            token = await self._credentials.renewed(token)
            answer = await self._wire.ask(method, path, headers | _bearing(token), body)
        return answer

    async def _capabilities(self) -> Capabilities:
        answer = await self._ask("GET", "/v1/capabilities", {})
        if answer.is_taken:
            return capabilities.read(answer.document)
        # A server in trouble is not therefore a plain one; everything else is.
        if answer.status in (401, 408, 425, 429) or (answer.status >= 500 and answer.status != 501):
            raise self._trouble(answer)
        return capabilities.PLAIN

    def _shown(self, answer: Answer) -> Answer:
        return answer.without(self._credentials.secrets)

    def _trouble(self, answer: Answer, stream: StreamKey | None = None) -> Exception:
        answer = self._shown(answer)
        if answer.status == 401:
            return Denied(
                f"{self._address} refuses the token of the sink {self._settings.name}, also a new one: {answer.shown}",
                kind="token_refused",
                repair="hyp server token list, on the server",
            )
        if answer.status == 404 and stream:
            return Denied(
                f"{self._address} has no place for the dataset {stream.dataset}: it answered {answer.shown}",
                kind=answer.kind or "not_found",
                repair=f"take {stream.dataset} out of sinks.{stream.sink}.datasets, or check the url of that sink",
            )
        return answers.trouble(answer)

    @cached_property
    def _json_columns(self) -> frozenset[str]:
        """A table does not say whose it is; text that is taken for JSON here is JSON in all datasets of the sink."""
        columns = [column for name in self._settings.datasets for column in datasets.get(name).columns]
        other = {column.name for column in columns if column.type is not Type.JSON}
        return frozenset(column.name for column in columns) - other


def _ingest_path(stream: StreamKey) -> str:
    return f"/v1/ingest/{quote(_SIGNALS.get(stream.dataset, stream.dataset), safe='')}"


def _whose(gateway_id: str, incarnation: str) -> dict[str, str]:
    return {"X-Hyp-Gateway": quote(gateway_id, safe=""), "X-Hyp-Incarnation": incarnation}


def _bearing(token: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}
