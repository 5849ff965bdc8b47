"""Telemetry records: the log records, spans and data points of a request, as rows.

A record's id is a keyed hash of its resource, its scope and the record itself, as the exporter sent them. OTLP has no
request ids, so the id is what recognizes the repetition of a request. Equal records of one request are different
records: the second one has `-1` after the hash, and so on. The key is that of the redaction markers, so that a
reader of rows without their secrets cannot test guesses of a secret by the hash.

A resource is sent once for many records and stored with each of them. `MAX_RECORDS` and `MAX_ROW_BYTES` limit what a
small request can become.
"""

from __future__ import annotations

import base64
import hmac
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from hypaware.model import canonical
from hypaware.model.columns import format_timestamp
from hypaware.model.datasets import Row
from hypaware.otlp.wire import OtlpProblem

MAX_RECORDS = 50_000
MAX_ROW_BYTES = 64 << 20
_MAX_NAME = 200
_MAX_EXACT = 2**53
_SESSION_ATTRIBUTES = ("session.id", "gen_ai.conversation.id", "conversation.id")
_SPAN_KINDS = {0: None, 1: "internal", 2: "server", 3: "client", 4: "producer", 5: "consumer"}
_STATUSES = {0: None, 1: "ok", 2: "error"}
_TEMPORALITIES = {0: None, 1: "delta", 2: "cumulative"}
_METADATA = ("name", "unit", "description")


@dataclass(frozen=True)
class TelemetryRecord:
    row: Row = field(default_factory=dict)
    """Not coerced yet."""
    problem: str | None = None
    """Why it cannot be stored."""


@dataclass(frozen=True)
class RecordReader:
    key: bytes
    received_at: datetime
    find_client: Callable[[str], str | None]
    """The service.name of a resource → the name of the client."""

    def read(self, request: Any) -> Iterator[TelemetryRecord]:
        """Yield the records of a request. Raise OtlpProblem if they are too many or too large."""
        signal = request.DESCRIPTOR.fields[0].name.removeprefix("resource_")
        size = 0
        seen: Counter[str] = Counter()
        for count, (digest, row, weight) in enumerate(self._list_records(request, signal), 1):
            size += weight
            if count > MAX_RECORDS or size > MAX_ROW_BYTES:
                raise OtlpProblem(413, "the request has too many records; send fewer in a request")
            if row is None:
                yield TelemetryRecord(problem="a metric has no data points of a known type")
                continue
            row["record_id"] = f"{digest}-{seen[digest]}" if seen[digest] else digest
            seen[digest] += 1
            name = row["service_name"] or ""
            if len(name) > _MAX_NAME or not name.isprintable():
                problem = f"the service.name of the resource is not printable text of up to {_MAX_NAME} characters"
                yield TelemetryRecord(problem=problem)
            else:
                yield TelemetryRecord({name: value for name, value in row.items() if value is not None})

    def _list_records(self, request: Any, signal: str) -> Iterator[tuple[str, Row | None, int]]:
        for of_resource in getattr(request, f"resource_{signal}"):
            resource = _to_object(of_resource.resource.attributes)
            for of_scope in getattr(of_resource, f"scope_{signal}"):
                origin = _Origin.read(self.key, of_resource, of_scope, resource, self.find_client)
                if signal == "metrics":
                    yield from self._list_points(of_scope.metrics, origin)
                    continue
                records = of_scope.log_records if signal == "logs" else of_scope.spans
                build = self._build_log_row if signal == "logs" else self._build_span_row
                for record in records:
                    yield origin.hash(record), build(record, origin), origin.size + record.ByteSize()

    def _list_points(self, metrics: Iterable[Any], origin: _Origin) -> Iterator[tuple[str, Row | None, int]]:
        for metric in metrics:
            kind = metric.WhichOneof("data")
            if kind is None:
                yield "", None, 0
                continue
            data = getattr(metric, kind)
            head: Row = {name: getattr(metric, name) or None for name in _METADATA}
            head |= {
                "type": kind,
                "temporality": _TEMPORALITIES.get(getattr(data, "aggregation_temporality", 0)),
                "is_monotonic": data.is_monotonic if kind == "sum" else None,
            }
            identity = canonical.dumps(head).encode()
            metadata = _to_object(metric.metadata)
            size = origin.size + len(identity)
            for point in data.data_points:
                row = self._build_point_row(kind, point, head, metadata, origin)
                yield origin.hash(point, identity), row, size + point.ByteSize()

    def _build_log_row(self, record: Any, origin: _Origin) -> Row:
        attributes = _to_object(record.attributes)
        body = _to_value(record.body)
        # Codex writes the place in its source as the name of the record, and the event as an attribute.
        attributed = attributes.get("event.name")
        event = attributed if isinstance(attributed, str) and attributed else record.event_name
        details = origin.details(record) or {}
        if record.event_name and record.event_name != event:
            details["event_name"] = record.event_name
        return {
            **origin.columns(attributes),
            "logged_at": self._format_time(record.time_unix_nano or record.observed_time_unix_nano),
            "observed_at": _format_time(record.observed_time_unix_nano),
            "event_name": event or None,
            "severity_number": record.severity_number or None,
            "severity_text": record.severity_text or None,
            "body": body if body is None or isinstance(body, str) else canonical.dumps(body),
            "trace_id": record.trace_id.hex() or None,
            "span_id": record.span_id.hex() or None,
            "details": details or None,
        }

    def _build_span_row(self, span: Any, origin: _Origin) -> Row:
        start, end = span.start_time_unix_nano, span.end_time_unix_nano
        events = [
            {"time": _format_time(each.time_unix_nano), "name": each.name, "attributes": _to_object(each.attributes)}
            | _numbers(each, "dropped_attributes_count")
            for each in span.events
        ]
        links = [
            {"trace_id": each.trace_id.hex(), "span_id": each.span_id.hex(), "attributes": _to_object(each.attributes)}
            | ({"trace_state": each.trace_state} if each.trace_state else {})
            | _numbers(each, "flags", "dropped_attributes_count")
            for each in span.links
        ]
        return {
            **origin.columns(_to_object(span.attributes)),
            "started_at": self._format_time(start or end),
            "ended_at": _format_time(end),
            "duration_ms": (end - start) / 1e6 if start and end else None,
            "name": span.name or None,
            "kind": _SPAN_KINDS.get(span.kind, str(span.kind)),
            "status": _STATUSES.get(span.status.code, str(span.status.code)),
            "status_message": span.status.message or None,
            "trace_id": span.trace_id.hex() or None,
            "span_id": span.span_id.hex() or None,
            "parent_span_id": span.parent_span_id.hex() or None,
            "trace_state": span.trace_state or None,
            "events": events or None,
            "links": links or None,
            "details": origin.details(span, "dropped_events_count", "dropped_links_count"),
        }

    def _build_point_row(self, kind: str, point: Any, head: Row, metadata: Mapping[str, Any], origin: _Origin) -> Row:
        details: dict[str, Any] = {**(origin.details(point) or {}), **({"metadata": metadata} if metadata else {})}
        row: Row = {
            **head,
            **origin.columns(_to_object(point.attributes)),
            "measured_at": self._format_time(point.time_unix_nano),
            "started_at": _format_time(point.start_time_unix_nano),
        }
        if kind in ("gauge", "sum"):
            measured = {name: getattr(point, name) for name in ("as_double", "as_int") if point.HasField(name)}
            value = next(iter(measured.values()), None)
            row["value"] = _as_double(value, "value", details)
        else:
            row["count"] = point.count
            for name in ("sum", "min", "max"):
                # A summary always has a sum, and neither a minimum nor a maximum.
                has_value = name == "sum" if kind == "summary" else point.HasField(name)
                row[name] = _as_double(getattr(point, name), name, details) if has_value else None
            details |= _describe_distribution(kind, point)
        if kind != "summary" and point.exemplars:
            details["exemplars"] = [_describe_exemplar(each) for each in point.exemplars]
        return {**row, "details": details or None}

    def _format_time(self, nanoseconds: int) -> str:
        """Return the time, or when the request was received if it is unknown."""
        return _format_time(nanoseconds) or format_timestamp(self.received_at)


@dataclass(frozen=True)
class _Origin:
    """The resource and the scope of records."""

    hasher: hmac.HMAC
    shared: Row
    resource: Mapping[str, Any]
    rest: Mapping[str, Any]
    size: int

    @classmethod
    def read(
        cls,
        key: bytes,
        of_resource: Any,
        of_scope: Any,
        resource: Mapping[str, Any],
        find_client: Callable[[str], str | None],
    ) -> _Origin:
        scope = of_scope.scope
        written = [_serialize(of_resource.resource), _serialize(scope)]
        written += [of_resource.schema_url.encode(), of_scope.schema_url.encode()]
        hasher = hmac.new(key, b"otlp", "sha256")
        for each in written:
            _add(hasher, each)
        service = resource.get("service.name")
        service = service if isinstance(service, str) and service else None
        shared = {
            "client_name": find_client(service) if service else None,
            "service_name": service,
            "scope_name": scope.name or None,
            "scope_version": scope.version or None,
        }
        rest = {
            "resource_schema_url": of_resource.schema_url,
            "scope_schema_url": of_scope.schema_url,
            "scope_attributes": _to_object(scope.attributes),
            "resource_dropped_attributes_count": of_resource.resource.dropped_attributes_count,
            "scope_dropped_attributes_count": scope.dropped_attributes_count,
            "entity_refs": [json_format.MessageToDict(each) for each in of_resource.resource.entity_refs],
        }
        present = {name: value for name, value in rest.items() if value}
        return cls(hasher, shared, resource, present, sum(map(len, written)))

    def hash(self, record: Message, head: bytes = b"") -> str:
        hasher = self.hasher.copy()
        _add(hasher, head)
        _add(hasher, _serialize(record))
        return hasher.hexdigest()[:32]

    def columns(self, attributes: Mapping[str, Any]) -> Row:
        texts = (holder.get(name) for holder in (attributes, self.resource) for name in _SESSION_ATTRIBUTES)
        session = next((each for each in texts if isinstance(each, str) and each), None)
        is_usable = session is not None and len(session) <= _MAX_NAME and session.isprintable()
        return {
            **self.shared,
            "session_id": session if is_usable else None,
            "attributes": attributes or None,
            "resource": self.resource or None,
        }

    def details(self, record: Any, *names: str) -> dict[str, Any] | None:
        return {**self.rest, **_numbers(record, "flags", "dropped_attributes_count", *names)} or None


def _serialize(message: Message) -> bytes:
    written: bytes = message.SerializeToString(deterministic=True)
    return written


def _add(hasher: hmac.HMAC, data: bytes) -> None:
    hasher.update(len(data).to_bytes(8, "big") + data)


def _numbers(message: Any, *names: str) -> dict[str, int]:
    """Return the fields that are not zero, as far as the message has them."""
    return {name: value for name in names if (value := getattr(message, name, 0))}


def _format_time(nanoseconds: int) -> str | None:
    if not nanoseconds:
        return None
    moment = datetime.fromtimestamp(nanoseconds // 1_000_000_000, UTC)
    return format_timestamp(moment.replace(microsecond=nanoseconds // 1000 % 1_000_000))


def _to_object(attributes: Iterable[Any]) -> dict[str, Any]:
    """Return attributes by name. If a name occurs twice, which OTLP forbids, the last one counts."""
    return {each.key: _to_value(each.value) for each in attributes}


def _to_value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    found = getattr(value, kind)
    if kind == "array_value":
        return [_to_value(each) for each in found.values]
    if kind == "kvlist_value":
        return _to_object(found.values)
    if kind == "bytes_value":
        return base64.b64encode(found).decode()
    return _to_number(found) if kind == "double_value" else found


def _to_number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _as_double(value: float | None, name: str, details: dict[str, Any]) -> float | None:
    """Return the value for a DOUBLE column; one that the column cannot hold exactly goes to the details."""
    if value is None:
        return None
    if isinstance(value, int):
        if abs(value) > _MAX_EXACT:
            details[f"exact_{name}"] = value
        return float(value)
    if not math.isfinite(value):
        details[name] = _to_number(value)
        return None
    return value


def _describe_distribution(kind: str, point: Any) -> dict[str, Any]:
    if kind == "histogram":
        bounds = [_to_number(each) for each in point.explicit_bounds]
        return {"bucket_counts": list(point.bucket_counts), "explicit_bounds": bounds}
    if kind == "summary":
        return {"quantiles": [[_to_number(each.quantile), _to_number(each.value)] for each in point.quantile_values]}
    sides = {
        name: {"offset": side.offset, "bucket_counts": list(side.bucket_counts)}
        for name, side in (("positive", point.positive), ("negative", point.negative))
    }
    return {
        "scale": point.scale,
        "zero_count": point.zero_count,
        "zero_threshold": _to_number(point.zero_threshold),
        **sides,
    }


def _describe_exemplar(exemplar: Any) -> dict[str, Any]:
    kind = exemplar.WhichOneof("value")
    value = getattr(exemplar, kind) if kind else None
    return {
        "time": _format_time(exemplar.time_unix_nano),
        "value": _to_number(value) if isinstance(value, float) else value,
        "trace_id": exemplar.trace_id.hex(),
        "span_id": exemplar.span_id.hex(),
        "attributes": _to_object(exemplar.filtered_attributes),
    }
