"""Coercion of an exchange's rows for the spool.

A message that does not fit its table is passed on unchanged. The flush checks every row again, rejects this one and
stores it with the reason among the rejects. If it cannot even be serialized, the raw exchange still holds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from hypaware.model.coerce import RowRejected, coerce_row
from hypaware.model.datasets import Row
from hypaware.model.exchanges import AI_GATEWAY_EXCHANGES
from hypaware.model.messages import AI_GATEWAY_MESSAGES

_BODIES = ("request_body", "response_body", "body_refs")


@dataclass
class Messages:
    native: list[Row] = field(default_factory=list)
    """With the client's own id; also those that the flush will reject."""
    fallback: list[Row] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)
    """For each message that does not fit: which column, without its content."""


def messages(rows: Sequence[Row], gateway_id: str) -> Messages:
    result = Messages()
    for row in rows:
        try:
            stored = coerce_row(AI_GATEWAY_MESSAGES, row, gateway_id)
        except RowRejected as reason:
            result.rejected.append(_place(reason))
            if _can_be_written(row):
                result.native.append(row)
        else:
            (result.fallback if has_no_own_id(stored) else result.native).append(stored)
    return result


def exchange(row: Row, gateway_id: str) -> tuple[Row, bool]:
    """Coerce the raw row; return it and whether it is complete. Without its bodies it always fits."""
    try:
        return coerce_row(AI_GATEWAY_EXCHANGES, row, gateway_id), True
    except RowRejected as reason:
        reduced = {name: value for name, value in row.items() if name not in _BODIES}
        reduced["error"] = "; ".join(each for each in (row.get("error"), f"not kept: {_place(reason)}") if each)
        return coerce_row(AI_GATEWAY_EXCHANGES, reduced, gateway_id), False


def has_no_own_id(row: Mapping[str, Any]) -> bool:
    """Return whether the gateway made up the row's identity, so that a transcript may replace it."""
    attributes = row.get("attributes")
    values = orjson.loads(attributes) if isinstance(attributes, str) else attributes
    gateway = values.get("gateway") if isinstance(values, Mapping) else None
    return isinstance(gateway, Mapping) and gateway.get("identity_source") == "gateway_fallback"


def _place(reason: RowRejected) -> str:
    """Return the name of the column; the rest of the message may quote content."""
    return str(reason).partition(":")[0]


def _can_be_written(row: Mapping[str, Any]) -> bool:
    try:
        orjson.dumps(row)
    except TypeError:
        return False
    return True
