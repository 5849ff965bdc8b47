"""A row for others to have: its texts without secrets. What identifies it stays, or nobody could tell it from another.

A text may be a stream of events, as the answer of a raw exchange is: such a one is redacted as a stream, since a secret
may be cut anywhere in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from hypaware.capture.redact import redact_json, redact_json_text
from hypaware.capture.redact_stream import redact_text_or_stream
from hypaware.model.columns import Type
from hypaware.model.datasets import Dataset

_FORMS = {Type.STRING: redact_text_or_stream, Type.JSON: redact_json_text}


def redact_row(
    dataset: Dataset, row: Mapping[str, Any], rules_off: Collection[str] = ()
) -> tuple[dict[str, Any], Counter[str]]:
    counts: Counter[str] = Counter()
    redacted = dict(row)
    for name, by in columns_with_text(dataset).items():
        value = row.get(name)
        if isinstance(value, str):
            redacted[name], found = by(value, rules_off)
        elif value is not None:
            redacted[name], found = redact_json(value, rules_off)
        else:
            continue
        counts.update(found)
    return redacted, counts


def columns_with_text(dataset: Dataset) -> dict[str, Any]:
    """The columns that may hold a secret, each with the function that redacts its text."""
    kept = {dataset.key_column, *dataset.key_parts, *dataset.source_columns}
    return {each.name: _FORMS[each.type] for each in dataset.columns if each.type in _FORMS and each.name not in kept}
