"""A JSON body in pieces that make it up to the letter, cut at the edges of what clients repeat; no piece has line ends.

The blocks of the messages (or items) are pieces, and so is every other value that is not small. How a client writes
JSON (spaces, escapes, the order of keys) is found by writing it the same way: if that does not give the very text, the
body is not cut.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

SMALL = 200
"""Letters; what is shorter is not worth a name of its own."""

_HISTORY = ("messages", "input")


@dataclass(frozen=True)
class _Writing:
    """How a client writes JSON."""

    dumps: Callable[[Any], str]
    comma: str
    colon: str


_COMPACT = _Writing(lambda value: orjson.dumps(value).decode(), ",", ":")
_SPACED = _Writing(json.dumps, ", ", ": ")


def pieces_of(text: str, document: Any) -> list[str] | None:
    """The body in pieces; None if it was written in a way that nobody here writes."""
    if not isinstance(document, dict) or "\n" in text:
        return None
    writing = _SPACED if '": ' in text[:100] else _COMPACT
    pieces: list[str] = []
    try:
        _add_object(pieces, document, writing, _HISTORY, _add_item)
    except (TypeError, ValueError, RecursionError):
        return None
    return pieces if "".join(pieces) == text else None


_Adder = Callable[[list[str], Any, _Writing], None]


def _add_object(
    pieces: list[str], value: dict[str, Any], writing: _Writing, opened: tuple[str, ...], add: _Adder
) -> None:
    """An object, with the lists under the `opened` keys item by item."""
    begins = "{"
    for key, item in value.items():
        begins += writing.dumps(key) + writing.colon
        if key in opened and isinstance(item, list):
            begins += "["
            for each in item:
                pieces.append(begins)
                add(pieces, each, writing)
                begins = writing.comma
            begins = "]" if item else begins + "]"
        else:
            written = writing.dumps(item)
            if len(written) < SMALL:
                begins += written
            else:
                pieces += (begins, written)
                begins = ""
        begins += writing.comma
    pieces.append((begins.removesuffix(writing.comma) if value else begins) + "}")


def _add_item(pieces: list[str], value: Any, writing: _Writing) -> None:
    if isinstance(value, dict):
        _add_object(pieces, value, writing, ("content",), _add_block)
    else:
        pieces.append(writing.dumps(value))


def _add_block(pieces: list[str], value: Any, writing: _Writing) -> None:
    """A block without its closing brace: what may be added for this request stands before that."""
    if not isinstance(value, dict) or not value:
        pieces.append(writing.dumps(value))
        return
    *_, last = value
    if last != "cache_control":
        pieces += (writing.dumps(value)[:-1], "}")
        return
    lasting = {key: item for key, item in value.items() if key != last}
    added = f"{writing.dumps(last)}{writing.colon}{writing.dumps(value[last])}}}"
    pieces += (writing.dumps(lasting)[:-1], writing.comma + added if lasting else added)
