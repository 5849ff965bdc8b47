"""The JSON documents of many sessions, made by columns.

A list can have tens of thousands of sessions. A dictionary for each, with its times as text, takes longer than reading
them. Here all texts, times and costs of a part of the list are encoded with one call each, and one template makes the
documents. The template is the encoded document of a session whose values are placeholders, so the result is that of
`SessionList.list_documents`, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from hypaware.cli import output
from hypaware.index.filters import project_of
from hypaware.index.sessions import StoredSession, make_document

if TYPE_CHECKING:
    from hypaware.index.sessions import SessionList

_PART = 1000
"""Sessions that are encoded together."""
_VALUES = 22
"""Of a document."""
_MACHINE = StoredSession._fields.index("machine")
_INDENT = b"\n        "
_EPOCH = datetime(1970, 1, 1)
_after_epoch = partial(timedelta, 0, 0)
_OPTIONS = orjson.OPT_INDENT_2 | orjson.OPT_NAIVE_UTC | orjson.OPT_UTC_Z
# Between two items of an encoded list. Strings in JSON have no raw newline.
_SEPARATOR = b",\n  "


def emit_sessions(found: SessionList) -> None:
    """Print `{"sessions": [documents]}`."""
    output.emit_parts("sessions", _encode_parts(found))


def _encode_parts(found: SessionList) -> Iterator[bytes]:
    template = output.encode_items("sessions", [make_document(*["%b"] * _VALUES)]).replace(b'"%b"', b"%b")
    names = dict(zip(found.names, _encode(list(found.names.values())), strict=True))
    projects = dict(zip(names, _encode([project_of(name) for name in found.names.values()]), strict=True))
    only = {number: _encode_names([name] if name else []) for number, name in found.names.items()}
    for start in range(0, len(found.rows), _PART):
        rows = found.rows[start : start + _PART]
        columns = list(zip(*rows, strict=True))
        _, ids, starts, ends, titles, *counts = columns[:_MACHINE]
        machines, clients, cwds, branches, models, *tokens, _ = columns[_MACHINE:]
        if found.titles:
            titles = tuple(found.titles.get(each) or title for each, title in zip(ids, titles, strict=True))
        costs, unpriced = zip(*map(found.price, rows), strict=True)
        values = (
            _encode(ids),
            *([names[each] for each in numbers] for numbers in (clients, machines)),
            [projects[each] for each in cwds],
            *([names[each] for each in numbers] for numbers in (cwds, branches)),
            [
                _encode_names(found.list_models(row)) if model is None else only[model]
                for model, row in zip(models, rows, strict=True)
            ],
            _encode(titles),
            *map(_encode_moments, (starts, ends)),
            *map(_encode, (*counts, *tokens, costs)),
            [_encode_names(each) if each else b"[]" for each in unpriced],
        )
        yield b",".join(map(template.__mod__, zip(*values, strict=True)))


def _encode(values: Sequence[Any]) -> list[bytes]:
    """Return each of some texts, numbers, times or nulls as JSON."""
    return orjson.dumps(values, option=_OPTIONS)[4:-2].split(_SEPARATOR)


def _encode_moments(moments: Sequence[int | None]) -> list[bytes]:
    """Return moments as `to_text` writes them."""
    if None in moments:
        return _encode([None if each is None else _EPOCH + _after_epoch(each) for each in moments])
    return _encode(list(map(_EPOCH.__add__, map(_after_epoch, moments))))


def _encode_names(names: Sequence[str]) -> bytes:
    """Return a list of names as it stands in the document of a session."""
    if not names:
        return b"[]"
    return b"[%b%b%b]" % (_INDENT, (b"," + _INDENT).join(_encode(names)), _INDENT[:-2])
