"""Split of a JSON body into fragments along the values that clients repeat; no fragment contains a line end.

The blocks of the messages (or items) are fragments, and so is every other value that is not small. The client's JSON
style (spaces, escapes, the order of keys) is detected by serializing the body in the same style: if the result differs
from the original text, the body is not split.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

SMALL = 200
"""Characters; shorter fragments are not worth a part of their own."""

_HISTORY = ("messages", "input")


@dataclass(frozen=True)
class _Writing:
    """How a client serializes JSON."""

    dumps: Callable[[Any], str]
    comma: str
    colon: str


_COMPACT = _Writing(lambda value: orjson.dumps(value).decode(), ",", ":")
_SPACED = _Writing(json.dumps, ", ", ": ")


def pieces_of(text: str, document: Any) -> list[str] | None:
    """Return the body in fragments; None if its JSON style is unknown."""
    if not isinstance(document, dict) or "\n" in text:
        return None
    style = _SPACED if '": ' in text[:100] else _COMPACT
    fragments: list[str] = []
    try:
        _add_object(fragments, document, style, _HISTORY, _add_item)
    except (TypeError, ValueError, RecursionError):
        return None
    return fragments if "".join(fragments) == text else None


_Adder = Callable[[list[str], Any, _Writing], None]


def _add_object(
    fragments: list[str], value: dict[str, Any], style: _Writing, opened: tuple[str, ...], add: _Adder
) -> None:
    """Add an object; the lists under the `opened` keys are added item by item."""
    pending = "{"
    for key, item in value.items():
        pending += style.dumps(key) + style.colon
        if key in opened and isinstance(item, list):
            pending += "["
            for each in item:
                fragments.append(pending)
                add(fragments, each, style)
                pending = style.comma
            pending = "]" if item else pending + "]"
        else:
            serialized = style.dumps(item)
            if len(serialized) < SMALL:
                pending += serialized
            else:
                fragments += (pending, serialized)
                pending = ""
        pending += style.comma
    fragments.append((pending.removesuffix(style.comma) if value else pending) + "}")


def _add_item(fragments: list[str], value: Any, style: _Writing) -> None:
    if isinstance(value, dict):
        _add_object(fragments, value, style, ("content",), _add_block)
    else:
        fragments.append(style.dumps(value))


def _add_block(fragments: list[str], value: Any, style: _Writing) -> None:
    """Add a block without its closing brace, because a key for one request may precede the brace."""
    if not isinstance(value, dict) or not value:
        fragments.append(style.dumps(value))
        return
    *_, last = value
    if last != "cache_control":
        fragments += (style.dumps(value)[:-1], "}")
        return
    permanent = {key: item for key, item in value.items() if key != last}
    added = f"{style.dumps(last)}{style.colon}{style.dumps(value[last])}}}"
    fragments += (style.dumps(permanent)[:-1], style.comma + added if permanent else added)
