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
from hypaware.model.expand import Exchange, Message, expand

_HASH_DIGITS = 16
_USAGE = '"usage":{'


def materialize(value: Any, provenance: Provenance, skipped: Counter[str]) -> Iterator[Row]:
    path = provenance.source_path.encode("utf-8", "surrogateescape")
    gateway = {
        "source": "backfill",
        # Identifies the file without revealing its name.
        "source_path_hash": hashlib.sha256(path).hexdigest()[:_HASH_DIGITS],
        "native_id": provenance.native_id,
    }
    return expand(_check_exchange(value), gateway=gateway, skipped=skipped)


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


def _check_exchange(value: Any) -> Exchange:
    if isinstance(value, Mapping):
        _check_keys("an exchange", value, _EXCHANGE_NEEDS, _EXCHANGE_KEYS)
        value = Exchange(**value)
    if not isinstance(value, Exchange):
        raise InvalidItem(f"expected an exchange, got {preview(value)}")
    for name in ("provider", "session_id", "client_name"):
        _require(isinstance(text := getattr(value, name), str) and text != "", f"an exchange's {name}", text, "text")
    _require_groups("an exchange", value)
    _require(
        isinstance(value.links, Mapping | None), "an exchange's links", value.links, "a mapping of ids to previous ids"
    )
    given: Any = value.messages
    is_sequence = isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping)
    _require(is_sequence, "an exchange's messages", given, "a sequence of messages")
    messages = (message if isinstance(message, Message) else _check_message(message) for message in given)
    fallback: Any = value.fallback_time
    match fallback:
        case None | (str(), str()):
            return replace(value, messages=messages, fallback_time=fallback and tuple(fallback))
    raise InvalidItem(f"an exchange's fallback_time is {preview(fallback)}, not a pair of time and origin")


def _check_message(given: Any) -> Message:
    if not isinstance(given, Mapping):
        raise InvalidItem(f"expected a message, got {preview(given)}")
    _check_keys("a message", given, _MESSAGE_NEEDS, _MESSAGE_KEYS)
    message = Message(**given)
    _require_groups("a message", message)
    _require(isinstance(message.fresh, bool), "a message's fresh", message.fresh, "true or false")
    count = message.occurrence
    _require(count is None or (type(count) is int and count >= 0), "a message's occurrence", count, "a whole number")
    return message


def _require_groups(what: str, value: Exchange | Message) -> None:
    for name in ("columns", "attributes"):
        group = getattr(value, name)
        _require(isinstance(group, Mapping), f"{what}'s {name}", group, "a mapping")


def _require(is_valid: bool, what: str, value: Any, expected: str) -> None:
    if not is_valid:
        raise InvalidItem(f"{what}: {preview(value)} is not {expected}")


def _check_keys(what: str, given: Mapping[Any, Any], needed: frozenset[str], known: frozenset[str]) -> None:
    if missing := sorted(needed - given.keys()):
        raise InvalidItem(f"{what} lacks {', '.join(missing)}")
    if unknown := [key for key in given if key not in known]:
        raise InvalidItem(f"{what} has the unknown key {preview(unknown[0])}")


def _required_keys(shape: type[Exchange] | type[Message]) -> frozenset[str]:
    return frozenset(each.name for each in fields(shape) if each.default is MISSING and each.default_factory is MISSING)


_EXCHANGE_KEYS, _EXCHANGE_NEEDS = frozenset(each.name for each in fields(Exchange)), _required_keys(Exchange)
_MESSAGE_KEYS, _MESSAGE_NEEDS = frozenset(each.name for each in fields(Message)), _required_keys(Message)
