"""A row of the original as a row of ours.

It says which installation recorded it, and for us that is this home from now on: a later import of the same
transcripts must know its rows by their keys. The old id is kept in `attributes.gateway.taken_over_from`. What ours has
no column for is kept in `attributes.taken_over`, by name, and so is a schema version that is not ours.
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
    """Counts what it had to set aside."""

    def __init__(self, dataset: Dataset, gateway_id: str) -> None:
        self._gateway_id = gateway_id
        self._known = frozenset(dataset.coercers)
        self._version = dataset.derive({}, gateway_id).get(_VERSION)
        self._has_attributes = any(column.name == ATTRIBUTES and column.type is Type.JSON for column in dataset.columns)
        self.set_aside: Counter[str] = Counter()

    def adapted(self, theirs: Mapping[str, Any]) -> Row:
        """The row as `coerce_row` takes it."""
        row: Row = {}
        aside: dict[str, Any] = {}
        for name, value in theirs.items():
            if value is None or name in INTERNAL:
                continue
            if name in self._known:
                row[name] = value
            else:
                aside[name] = _as_json(value)
        if self._version is not None and row.get(_VERSION, self._version) != self._version:
            aside[_VERSION] = row.pop(_VERSION)
        recorded_by = row.pop(GATEWAY, None)
        if self._has_attributes:
            self._note(row, recorded_by, aside)
        self.set_aside.update(aside.keys())
        return row

    def _note(self, row: Row, recorded_by: Any, aside: dict[str, Any]) -> None:
        groups = row.get(ATTRIBUTES, {})
        if isinstance(groups, str):
            with contextlib.suppress(ValueError, RecursionError):
                groups = canonical.parse(groups)
        if not isinstance(groups, dict):
            aside[ATTRIBUTES], groups = groups, {}
        if aside:
            groups = {**groups, "taken_over": aside}
        if recorded_by is not None and recorded_by != self._gateway_id:
            known = groups.get("gateway", {})
            noted = {**(known if isinstance(known, dict) else {"was": known}), "taken_over_from": recorded_by}
            groups = {**groups, "gateway": noted}
        if groups:
            row[ATTRIBUTES] = groups


def _as_json(value: Any) -> Any:
    """A value of a column that ours does not have, in a form that JSON can say."""
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
