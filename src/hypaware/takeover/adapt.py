"""Converting a row of the original into a row of this program.

The original row names the installation that recorded it. The converted row belongs to this home, so that a later import
of the same transcripts recognises it by its key. The old installation id is kept in
`attributes.gateway.taken_over_from`. Values without a column here are kept by name in `attributes.taken_over`, and so
is a different schema version.
"""

from __future__ import annotations

import base64
import contextlib
from collections import Counter
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

from hypaware.model import canonical
from hypaware.model.columns import Type, timestamp_text
from hypaware.model.datasets import GATEWAY, INTERNAL, Dataset, Row

ATTRIBUTES = "attributes"
_VERSION = "schema_version"


class Adapter:
    """Converts rows and counts the values that have no column."""

    def __init__(self, dataset: Dataset, gateway_id: str) -> None:
        self._gateway_id = gateway_id
        self._known = frozenset(dataset.coercers)
        self._version = dataset.derive({}, gateway_id).get(_VERSION)
        self._has_attributes = any(column.name == ATTRIBUTES and column.type is Type.JSON for column in dataset.columns)
        self.set_aside: Counter[str] = Counter()

    def convert(self, original: Mapping[str, Any]) -> Row:
        """Return the row in the form that `coerce_row` accepts."""
        row: Row = {}
        extra: dict[str, Any] = {}
        for name, value in original.items():
            if value is None or name in INTERNAL:
                continue
            if name in self._known:
                row[name] = value
            else:
                extra[name] = _as_json(value)
        if self._version is not None and row.get(_VERSION, self._version) != self._version:
            extra[_VERSION] = row.pop(_VERSION)
        recorded_by = row.pop(GATEWAY, None)
        if self._has_attributes:
            self._set_attributes(row, recorded_by, extra)
        self.set_aside.update(extra.keys())
        return row

    def _set_attributes(self, row: Row, recorded_by: Any, extra: dict[str, Any]) -> None:
        attributes = row.get(ATTRIBUTES, {})
        if isinstance(attributes, str):
            with contextlib.suppress(ValueError, RecursionError):
                attributes = canonical.parse(attributes)
        if not isinstance(attributes, dict):
            extra[ATTRIBUTES], attributes = attributes, {}
        if extra:
            attributes = {**attributes, "taken_over": extra}
        if recorded_by is not None and recorded_by != self._gateway_id:
            existing = attributes.get("gateway", {})
            gateway = {
                **(existing if isinstance(existing, dict) else {"was": existing}),
                "taken_over_from": recorded_by,
            }
            attributes = {**attributes, "gateway": gateway}
        if attributes:
            row[ATTRIBUTES] = attributes


def _as_json(value: Any) -> Any:
    """Convert a value of an unknown column into a JSON value."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return timestamp_text(value) if value.tzinfo else value.isoformat()
    if isinstance(value, date | time | Decimal):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _as_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(each) for each in value]
    return value
