"""OTLP over HTTP: requests as protobuf messages, and their responses.

    POST /v1/logs, /v1/traces, /v1/metrics
    Content-Type: application/x-protobuf or application/json; Content-Encoding: none, identity or gzip

The response has the encoding of the request. Its body is the Export…ServiceResponse of the signal, which names the
number of rejected records and a reason only if there are any. An error is a `Status` (code, message) of Google's RPC,
as OTLP requires. An exporter repeats a request after 429 and 503, and drops it after any other error.

JSON is OTLP's variant of protobuf's mapping: trace and span ids are hexadecimal digits, not base64. Parsed JSON becomes
the same message as protobuf, so a record is the same row in both encodings.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import orjson
from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs_service
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_service
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_service

from hypaware.model import canonical
from hypaware.model.datasets import Dataset
from hypaware.model.otel_schemas import OTEL_LOGS, OTEL_METRICS, OTEL_SPANS

MAX_BODY_BYTES = 20 << 20
"""The limit before and after decompression."""
PROTOBUF, JSON = "application/x-protobuf", "application/json"
_MAX_DEPTH = 100
"""The limit of protobuf's own parser."""
_GZIP = 31
_IDS = frozenset(("traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id"))
# Codes of google.rpc.Code.
_CODES = {400: 3, 403: 7, 404: 5, 405: 12, 408: 4, 413: 8, 415: 3, 429: 8, 503: 14}
_INTERNAL = 13


@dataclass(frozen=True)
class OtlpSignal:
    path: str
    dataset: Dataset
    request_type: type[Message]
    response_type: type[Message]
    rejected_field: str


SIGNALS: Mapping[str, OtlpSignal] = {
    each.path: each
    for each in (
        OtlpSignal(
            "/v1/logs",
            OTEL_LOGS,
            logs_service.ExportLogsServiceRequest,
            logs_service.ExportLogsServiceResponse,
            "rejected_log_records",
        ),
        OtlpSignal(
            "/v1/traces",
            OTEL_SPANS,
            trace_service.ExportTraceServiceRequest,
            trace_service.ExportTraceServiceResponse,
            "rejected_spans",
        ),
        OtlpSignal(
            "/v1/metrics",
            OTEL_METRICS,
            metrics_service.ExportMetricsServiceRequest,
            metrics_service.ExportMetricsServiceResponse,
            "rejected_data_points",
        ),
    )
}


class OtlpProblem(Exception):
    """A request that is refused; nothing of it is stored."""

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after


def find_content_type(headers: Mapping[str, str]) -> str | None:
    """Return the encoding of the message, or None if it is neither protobuf nor JSON."""
    written = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    return {PROTOBUF: PROTOBUF, "application/protobuf": PROTOBUF, JSON: JSON}.get(written)


def decode_request(signal: OtlpSignal, content_type: str, encoding: str, body: bytes) -> Message:
    """Return the message of a request. Raise OtlpProblem if it is not one, or too large."""
    if encoding == "gzip":
        body = decompress(body, MAX_BODY_BYTES)
    elif encoding not in ("", "identity"):
        raise OtlpProblem(415, "Content-Encoding must be gzip or identity")
    message = signal.request_type()
    if content_type == JSON:
        _parse_json(body, message)
    else:
        try:
            message.ParseFromString(body)
        except DecodeError as error:
            raise OtlpProblem(400, f"the body is not a protobuf message of {signal.path}: {error}") from None
    return message


def decompress(body: bytes, limit: int) -> bytes:
    """Decompress gzip. Stop at the limit, so that a decompression bomb does not fill the memory."""
    pieces: list[bytes] = []
    room = limit
    while body:
        stream = zlib.decompressobj(_GZIP)
        try:
            pieces.append(stream.decompress(body, room + 1))
        except zlib.error as error:
            raise OtlpProblem(400, f"the body is not gzip: {error}") from None
        room -= len(pieces[-1])
        if room < 0:
            raise too_large()
        if not stream.eof:
            raise OtlpProblem(400, "the gzip body ended early")
        body = stream.unused_data
    return b"".join(pieces)


def too_large() -> OtlpProblem:
    return OtlpProblem(413, f"the body is larger than {MAX_BODY_BYTES >> 20} MiB; send fewer records in a request")


def _parse_json(body: bytes, message: Message) -> None:
    try:
        document = canonical.loads(body)
        if not isinstance(document, dict):
            raise ValueError("it is not an object")
        _decode_ids(document)
        json_format.ParseDict(document, message, ignore_unknown_fields=True, max_recursion_depth=_MAX_DEPTH)
    except (json_format.Error, ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise OtlpProblem(400, f"the body is not OTLP in JSON: {type(error).__name__}: {str(error)[:200]}") from None


def _decode_ids(document: Any) -> None:
    """Write ids as base64, as protobuf's JSON has them. The names of attributes are values, so they are never keys."""
    pending = [document]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            for name in _IDS & item.keys():
                if item[name] is not None:
                    try:
                        item[name] = base64.b64encode(bytes.fromhex(item[name])).decode()
                    except (ValueError, TypeError, binascii.Error):
                        raise ValueError(f"{name} is not hexadecimal") from None
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)


def encode_response(signal: OtlpSignal, content_type: str, rejected: int, reason: str) -> bytes:
    message = signal.response_type()
    if rejected:
        partial = message.partial_success
        setattr(partial, signal.rejected_field, rejected)
        partial.error_message = reason
    if content_type == JSON:
        return orjson.dumps(json_format.MessageToDict(message))
    written: bytes = message.SerializeToString()
    return written


def encode_error(content_type: str, status: int, message: str) -> bytes:
    code = _CODES.get(status, _INTERNAL)
    if content_type == JSON:
        return orjson.dumps({"code": code, "message": message})
    # `Status` has two fields, which are not worth another package: 1 is an integer, 2 is text.
    text = (message or HTTPStatus(status).phrase).encode()
    return b"\x08" + _varint(code) + b"\x12" + _varint(len(text)) + text


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)
