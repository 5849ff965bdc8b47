"""Edit JSON text in place: find members and elements, and change them without touching any other byte.

Accepts plain JSON only: no comments, no NaN, no duplicate keys in the objects that are read. Positions are character
offsets. New lines follow the indentation of the text; single-line text stays on one line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from hypaware.clients.splice import Splice

_SPACE = re.compile(r"[ \t\r\n]*")
_INDENT = re.compile(r"[{\[,]\r?\n([ \t]+)[\"{\[]")


class NotPlain(ValueError):
    """The text is not plain JSON; the message says why."""


class Member(NamedTuple):
    name: str
    begin: int
    """Offset of its name."""
    start: int
    """Offset of its value."""
    end: int


def _refuse(constant: str) -> NoReturn:
    raise NotPlain(f"{constant} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse)


def parse(text: str) -> Any:
    try:
        value, end = _decoder.raw_decode(text, _skip(text, 0))
    except json.JSONDecodeError as error:
        raise NotPlain(f"line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise NotPlain("nested too deeply") from None
    if (end := _skip(text, end)) != len(text):
        raise NotPlain(f"line {text.count(chr(10), 0, end) + 1}: unexpected text after the end of the JSON value")
    return value


def root(text: str) -> int:
    """Return the offset of the top-level value."""
    return _skip(text, 0)


def members(text: str, start: int) -> list[Member]:
    """Return the members of the object that begins at `start`."""
    found: list[Member] = []
    at = _skip(text, start + 1)
    while text[at] != "}":
        begin = at
        name, at = _decoder.raw_decode(text, at)
        value = _skip(text, _skip(text, at) + 1)
        _, end = _decoder.raw_decode(text, value)
        found.append(Member(name, begin, value, end))
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    if len({member.name for member in found}) < len(found):
        raise NotPlain(f"line {text.count(chr(10), 0, start) + 1}: an object has a duplicate key")
    return found


def member(text: str, start: int, name: str) -> Member | None:
    return next((each for each in members(text, start) if each.name == name), None)


def elements(text: str, start: int) -> list[tuple[int, int]]:
    """Return the (start, end) offsets of the elements of the array that begins at `start`."""
    found: list[tuple[int, int]] = []
    at = _skip(text, start + 1)
    while text[at] != "]":
        _, end = _decoder.raw_decode(text, at)
        found.append((at, end))
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return found


def add_member(text: str, start: int, name: str, value: Any) -> Splice:
    return _add(text, start, [each.end for each in members(text, start)], f"{json.dumps(name)}: ", value)


def add_element(text: str, start: int, value: Any) -> Splice:
    return _add(text, start, [end for _, end in elements(text, start)], "", value)


def set_value(text: str, at: Member, value: Any) -> Splice:
    return Splice(at.start, text[at.start : at.end], json.dumps(value, ensure_ascii=False))


def remove_member(text: str, start: int, name: str) -> Splice:
    found = members(text, start)
    return _remove(text, start, [(each.begin, each.end) for each in found], [each.name for each in found].index(name))


def remove_element(text: str, start: int, index: int) -> Splice:
    return _remove(text, start, elements(text, start), index)


def _add(text: str, start: int, ends: Sequence[int], name: str, value: Any) -> Splice:
    inside = text[start + 1 : _skip(text, start + 1)]
    line_end = "\r\n" if "\r\n" in text else "\n"
    many_lines = "\n" in inside or (not ends and ("\n" in text.strip() or len(text.strip()) <= 2))
    if not many_lines:
        written = name + json.dumps(value, ensure_ascii=False)
        return Splice(ends[-1], "", f", {written}") if ends else Splice(start + 1, "", written)
    indent = found[1] if (found := _INDENT.search(text)) else "  "
    # The indentation of the line on which the container begins gives its depth.
    outer = re.match(r"[ \t]*", text[text.rfind("\n", 0, start) + 1 :])[0]  # type: ignore[index]
    unit = indent if _depth(text, start) == 0 else _unit(indent, outer, _depth(text, start))
    body = json.dumps(value, ensure_ascii=False, indent=unit).replace("\n", line_end + outer + unit)
    line = line_end + outer + unit + name + body
    if ends:
        return Splice(ends[-1], "", f",{line}")
    return Splice(start + 1, "", line if "\n" in inside else line + line_end + outer)


def _unit(indent: str, outer: str, depth: int) -> str:
    """Return one level of indentation of this text."""
    return outer[: len(outer) // depth] if outer and len(outer) % depth == 0 else indent


def _depth(text: str, start: int) -> int:
    """Return how many containers enclose an offset; brackets inside strings do not count."""
    depth, at = 0, _skip(text, 0)
    while at < start:
        if text[at] == '"':
            _, at = _decoder.raw_decode(text, at)
            continue
        depth += (text[at] in "{[") - (text[at] in "}]")
        at += 1
    return depth


def _remove(text: str, start: int, spans: Sequence[tuple[int, int]], index: int) -> Splice:
    begin, end = spans[index]
    if index:
        begin = spans[index - 1][1]
    elif len(spans) > 1:
        end = spans[1][0]
    else:
        begin, end = start + 1, _skip(text, end)
    return Splice(begin, text[begin:end], "")


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at
