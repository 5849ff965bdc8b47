"""The dataset `ai_gateway_exchanges`: one row per HTTP exchange that passed the gateway, without secrets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypaware.model.columns import Column, Type
from hypaware.model.datasets import Dataset, Row

_COLUMNS = (
    Column("exchange_id", Type.STRING, "Id of the exchange; unique, the row's key.", required=True),
    Column("gateway_id", Type.STRING, "Id of the installation that recorded the row.", required=True),
    Column("ts_start", Type.TIMESTAMP, "When the request began (UTC).", required=True),
    Column("ts_end", Type.TIMESTAMP, "When the response ended (UTC)."),
    Column("duration_ms", Type.BIGINT, "Milliseconds from start to end."),
    Column("ttfb_ms", Type.BIGINT, "Milliseconds from start to the first byte of the response body."),
    Column("upstream", Type.STRING, "Name of the upstream that the request was sent to."),
    Column("provider", Type.STRING, "API dialect of the upstream, for example anthropic or openai."),
    Column("client_name", Type.STRING, "The recorded client, if known."),
    Column("session_id", Type.STRING, "The client's session id, if the exchange could be decoded."),
    Column("method", Type.STRING, "HTTP method.", required=True),
    Column("path", Type.STRING, "Path with query string; the values of the query are removed.", required=True),
    Column("status_code", Type.INT, "Status of the response; null if there was none."),
    Column("request_bytes", Type.BIGINT, "Size of the request body as transferred."),
    Column("response_bytes", Type.BIGINT, "Size of the response body as transferred."),
    Column("is_sse", Type.BOOLEAN, "True if the response was an event stream."),
    Column("stream_event_count", Type.INT, "Events in the stream."),
    Column("request_headers", Type.JSON, "Headers of the request, without secrets."),
    Column("response_headers", Type.JSON, "Headers of the response, without secrets."),
    Column(
        "request_body", Type.STRING, "The new parts of the request body; body_refs says how to reassemble the whole."
    ),
    Column("response_body", Type.STRING, "The response body, decompressed."),
    Column("body_refs", Type.JSON, "The parts of the request body, by content hash; null if request_body is complete."),
    Column("error", Type.STRING, "Why the exchange ended early, or why a body could not be decompressed."),
    Column("decoded", Type.BOOLEAN, "True if HypAware could decode the exchange."),
    Column(
        "metadata",
        Type.JSON,
        "Kind of call (turn, title, count_tokens, compaction, warmup, side), dialect, dev_run_id.",
    ),
)


def _derive(_row: Row, gateway_id: str) -> Mapping[str, Any]:
    return {"gateway_id": gateway_id}


AI_GATEWAY_EXCHANGES = Dataset(
    name="ai_gateway_exchanges",
    about="One row per HTTP exchange that passed the gateway, without secrets.",
    columns=_COLUMNS,
    time_column="ts_start",
    source_columns=("client_name", "provider", "upstream"),
    key_column="exchange_id",
    derive=_derive,
    retention_days=14,
)
