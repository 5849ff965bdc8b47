"""`ai_gateway_exchanges`: one row per exchange that passed the gateway, as it was, secrets left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypaware.model.columns import Column, Type
from hypaware.model.datasets import Dataset, Row

_S, _I, _L, _B, _T, _J = Type.STRING, Type.INT, Type.BIGINT, Type.BOOLEAN, Type.TIMESTAMP, Type.JSON

_COLUMNS = (
    Column("exchange_id", _S, "Id of the exchange; unique, the key of a row.", required=True),
    Column("gateway_id", _S, "Id of the installation that recorded the row.", required=True),
    Column("ts_start", _T, "When the request began (UTC).", required=True),
    Column("ts_end", _T, "When the answer had ended (UTC)."),
    Column("duration_ms", _L, "From the start to the end."),
    Column("ttfb_ms", _L, "From the start to the first byte of the answer's body."),
    Column("upstream", _S, "Name of the route that was taken."),
    Column("provider", _S, "Whose dialect the route speaks, for example anthropic or openai."),
    Column("client_name", _S, "The client that was recorded, where it is known."),
    Column("session_id", _S, "The client's id of the session, where the exchange could be read."),
    Column("method", _S, "HTTP method.", required=True),
    Column("path", _S, "Path, with its query; the query's values are left out.", required=True),
    Column("status_code", _I, "Status of the answer; null if none came."),
    Column("request_bytes", _L, "Bytes of the request's body as they passed."),
    Column("response_bytes", _L, "Bytes of the answer's body as they passed."),
    Column("is_sse", _B, "Whether the answer was a stream of events."),
    Column("stream_event_count", _I, "Events in the stream."),
    Column("request_headers", _J, "Headers of the request, without secrets."),
    Column("response_headers", _J, "Headers of the answer, without secrets."),
    Column("request_body", _S, "What is new in the request's body; body_refs says how the whole is put together."),
    Column("response_body", _S, "The answer's body, unpacked."),
    Column("body_refs", _J, "The request's body in parts, by content hash; null: request_body is all of it."),
    Column("error", _S, "How it ended before its time, or why a body could not be unpacked."),
    Column("decoded", _B, "Whether somebody here could read it."),
    Column("metadata", _J, "kind of call (turn, title, count_tokens, compaction, warmup, side), dialect, dev_run_id."),
)


def _derive(_row: Row, gateway_id: str) -> Mapping[str, Any]:
    return {"gateway_id": gateway_id}


AI_GATEWAY_EXCHANGES = Dataset(
    name="ai_gateway_exchanges",
    about="One row per exchange that passed the gateway, as it was, secrets left out.",
    columns=_COLUMNS,
    time_column="ts_start",
    source_columns=("client_name", "provider", "upstream"),
    key_column="exchange_id",
    derive=_derive,
    retention_days=14,
)
