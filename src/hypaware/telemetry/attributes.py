"""Sanitise attributes: snake_case keys, plain values, text cut at 512 characters."""

from __future__ import annotations

import re
from collections.abc import Mapping

LONGEST = 512

Plain = str | bool | int | float
Value = Plain | list[str]

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_FOREIGN = re.compile(r"[^a-z0-9_]+")


def clean(attributes: Mapping[str, object]) -> dict[str, Value]:
    """Return the attributes without None values. Lists become lists of text; other objects become text."""
    return {_key(key): _value(value) for key, value in attributes.items() if value is not None}


def _key(key: str) -> str:
    return _FOREIGN.sub("_", _CAMEL.sub("_", key).lower())[:LONGEST]


def _value(value: object) -> Value:
    if isinstance(value, bool | int | float):
        return value if not isinstance(value, int) or abs(value) < 2**63 else str(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [str(item)[:LONGEST] for item in value]
    return str(value)[:LONGEST]
