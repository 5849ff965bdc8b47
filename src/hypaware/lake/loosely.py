"""Lenient parsing of rejected lines: enough to tell which session and part they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypaware.model import canonical
from hypaware.model.datasets import GATEWAY, Dataset


def row_in(line: bytes | str) -> Mapping[str, Any]:
    """Return the row of an envelope, or the line if it is a row itself, or an empty mapping."""
    try:
        found = canonical.parse(line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line)
    except (ValueError, RecursionError):
        return {}
    if isinstance(found, dict) and isinstance(found.get("row"), dict):
        found = found["row"]
    return found if isinstance(found, dict) else {}


def fitted(dataset: Dataset, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the valid columns of a row, coerced, and the columns derived from them."""
    valid: dict[str, Any] = {}
    for name, value in row.items():
        if name in dataset.coercers and value is not None:
            try:
                valid[name] = dataset.coercers[name](value)
            except (ValueError, RecursionError):
                continue
    try:
        derived = dict(dataset.derive(valid, str(valid.get(GATEWAY, ""))))
    except Exception:
        # A plugin's rule may fail on an incomplete row.
        derived = {}
    # The gateway cannot be derived; without one the row is our own.
    derived.pop(GATEWAY, None)
    return {**derived, **valid}
