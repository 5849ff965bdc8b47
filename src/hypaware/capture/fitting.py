"""Rows of an exchange as they go into the spool: coerced where they fit their tables, and told apart.

A message that does not fit goes along as it is. The flush judges every row once more, refuses it and keeps it with the
reason, where all refused rows are; if it cannot even be written, the raw exchange still holds it.
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
    own: list[Row] = field(default_factory=list)
    """With the client's own id; and those that the flush will refuse."""
    without_id: list[Row] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Why, for each that does not fit: without what it says."""


def messages(rows: Sequence[Row], gateway_id: str) -> Messages:
    found = Messages()
    for row in rows:
        try:
            stored = coerce_row(AI_GATEWAY_MESSAGES, row, gateway_id)
        except RowRejected as reason:
            found.refused.append(_place(reason))
            if _can_be_written(row):
                found.own.append(row)
        else:
            (found.without_id if has_no_own_id(stored) else found.own).append(stored)
    return found


def exchange(row: Row, gateway_id: str) -> tuple[Row, bool]:
    """The raw row, and whether it is whole: without its bodies it fits in any case."""
    try:
        return coerce_row(AI_GATEWAY_EXCHANGES, row, gateway_id), True
    except RowRejected as reason:
        left = {name: value for name, value in row.items() if name not in _BODIES}
        left["error"] = "; ".join(each for each in (row.get("error"), f"not kept: {_place(reason)}") if each)
        return coerce_row(AI_GATEWAY_EXCHANGES, left, gateway_id), False


def has_no_own_id(row: Mapping[str, Any]) -> bool:
    """Whether the gateway made the row's identity up, so that a transcript may know better."""
    attributes = row.get("attributes")
    found = orjson.loads(attributes) if isinstance(attributes, str) else attributes
    gateway = found.get("gateway") if isinstance(found, Mapping) else None
    return isinstance(gateway, Mapping) and gateway.get("identity_source") == "gateway_fallback"


def _place(reason: RowRejected) -> str:
    """Which column it is; what follows may quote what somebody said."""
    return str(reason).partition(":")[0]


def _can_be_written(row: Mapping[str, Any]) -> bool:
    try:
        orjson.dumps(row)
    except TypeError:
        return False
    return True
