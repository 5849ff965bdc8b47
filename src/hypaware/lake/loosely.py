"""Reading a row out of a line that nobody could take: enough of it to say whose it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypaware.model import canonical
from hypaware.model.datasets import GATEWAY, Dataset


def row_in(line: bytes | str) -> Mapping[str, Any]:
    """The row of an envelope, or the line itself where that is a row; empty where it is neither."""
    try:
        found = canonical.parse(line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line)
    except (ValueError, RecursionError):
        return {}
    if isinstance(found, dict) and isinstance(found.get("row"), dict):
        found = found["row"]
    return found if isinstance(found, dict) else {}


def fitted(dataset: Dataset, row: Mapping[str, Any]) -> dict[str, Any]:
    """Those of its columns that can be read, in their plain form, and what follows from them."""
    fit: dict[str, Any] = {}
    for name, value in row.items():
        if name in dataset.coercers and value is not None:
            try:
                fit[name] = dataset.coercers[name](value)
            except (ValueError, RecursionError):
                continue
    try:
        derived = dict(dataset.derive(fit, str(fit.get(GATEWAY, ""))))
    except Exception:
        # A plugin's own rule, over a row that it has not been made for.
        derived = {}
    # Whose it is does not follow from anything else; without a word it is our own.
    derived.pop(GATEWAY, None)
    return {**derived, **fit}
