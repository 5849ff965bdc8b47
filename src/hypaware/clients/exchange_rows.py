"""`ai_gateway.projected_exchange`: the materializer that turns an exchange into rows of `ai_gateway_messages`.

A provider yields an `Exchange`, or a mapping with the same keys, whose messages may be mappings too. The rows equal
those of live capture for the same conversation, except for `attributes.gateway`, which says that they were imported
and from where: `{source: "backfill", source_path_hash, native_id}`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, replace
from typing import Any

import orjson

from hypaware.clients.client import InvalidItem, Materializer, Provenance
from hypaware.model.columns import preview
from hypaware.model.datasets import Row
from hypaware.model.expand import Exchange, Expansion, Message

_USAGE = '"usage":{'
_SHAPES: tuple[type, ...] = (Exchange, Message)
_KNOWN = {shape: frozenset(each.name for each in fields(shape)) for shape in _SHAPES}
_NEEDED = {
    shape: frozenset(each.name for each in fields(shape) if each.default is each.default_factory is MISSING)
    for shape in _SHAPES
}


def materialize(value: Any, provenance: Provenance, skipped: Counter[str]) -> Iterator[Row]:
    if isinstance(value, Mapping):
        _check_keys("an exchange", value, Exchange)
        value = Exchange(**value)
    if not isinstance(value, Exchange):
        raise InvalidItem(f"expected an exchange, got {preview(value)}")
    for name in ("provider", "session_id", "client_name"):
        _require(isinstance(text := getattr(value, name), str) and text != "", f"an exchange's {name}", text, "text")
    for name in ("columns", "attributes"):
        _require(isinstance(group := getattr(value, name), Mapping), f"an exchange's {name}", group, "a mapping")
    links, given = value.links, value.messages
    _require(isinstance(links, Mapping | None), "an exchange's links", links, "a mapping of ids to previous ids")
    is_sequence = isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping)
    _require(is_sequence, "an exchange's messages", given, "a sequence of messages")
    messages = (message if isinstance(message, Message) else _check_message(message) for message in given)
    fallback: Any = value.fallback_time
    match fallback:
        case None | (str(), str()):
            exchange = replace(value, messages=messages, fallback_time=fallback and tuple(fallback))
        case _:
            raise InvalidItem(f"an exchange's fallback_time is {preview(fallback)}, not a pair of time and origin")
    path = provenance.source_path.encode("utf-8", "surrogateescape")
    gateway = {
        "source": "backfill",
        # Identifies the file without revealing its name.
        "source_path_hash": hashlib.sha256(path).hexdigest()[:16],
        "native_id": provenance.native_id,
    }
    return Expansion(exchange, gateway=gateway, skipped=skipped).rows()


def count_tokens(row: Row) -> Mapping[str, int]:
    """Return the token counts in a stored row."""
    attributes = row.get("attributes")
    if not isinstance(attributes, str) or (found := attributes.rfind(_USAGE)) < 0:
        return {}
    try:
        # The keys are sorted, so `usage` is usually the last group.
        usage = orjson.loads(attributes[found + len(_USAGE) - 1 : -1])
    except orjson.JSONDecodeError:
        usage = orjson.loads(attributes).get("usage")
    return {kind: count for kind, count in usage.items() if type(count) is int} if isinstance(usage, dict) else {}


PROJECTED_EXCHANGE = Materializer(
    "ai_gateway.projected_exchange", "ai_gateway_messages", materialize, count_tokens, rows_are_coerced=True
)


def _check_message(given: Any) -> Message:
    if not isinstance(given, Mapping):
        raise InvalidItem(f"expected a message, got {preview(given)}")
    _check_keys("a message", given, Message)
    message = Message(**given)
    for name in ("columns", "attributes"):
        _require(isinstance(group := getattr(message, name), Mapping), f"a message's {name}", group, "a mapping")
    _require(isinstance(message.fresh, bool), "a message's fresh", message.fresh, "true or false")
    count = message.occurrence
    _require(count is None or (type(count) is int and count >= 0), "a message's occurrence", count, "a whole number")
    return message


def _require(is_valid: bool, what: str, value: Any, expected: str) -> None:
    if not is_valid:
        raise InvalidItem(f"{what}: {preview(value)} is not {expected}")


def _check_keys(what: str, given: Mapping[Any, Any], shape: type) -> None:
    if missing := sorted(_NEEDED[shape] - given.keys()):
        raise InvalidItem(f"{what} lacks {', '.join(missing)}")
    if unknown := [key for key in given if key not in _KNOWN[shape]]:
        raise InvalidItem(f"{what} has the unknown key {preview(unknown[0])}")
