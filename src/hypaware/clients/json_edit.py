"""Edit JSON text in place: find members and elements, and change them without touching any other byte.

Accepts plain JSON only: no comments, no NaN, no duplicate keys in the objects that are read. Positions are character
offsets. New lines follow the indentation of the text; single-line text stays on one line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from hypaware.clients.settings_file import Splice

_SPACE = re.compile(r"[ \t\r\n]*")
_INDENT = re.compile(r"[{\[,]\r?\n([ \t]+)[\"{\[]")


class NotPlainJson(ValueError):
    """The text is not plain JSON; the message says why."""


class JsonMember(NamedTuple):
    name: str
    begin: int
    """Offset of its name."""
    start: int
    """Offset of its value."""
    end: int


def _reject_constant(constant: str) -> NoReturn:
    raise NotPlainJson(f"{constant} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_reject_constant)


def parse_json(text: str) -> Any:
    try:
        value, end = _decoder.raw_decode(text, _skip_space(text, 0))
    except json.JSONDecodeError as error:
        raise NotPlainJson(f"line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise NotPlainJson("nested too deeply") from None
    if (end := _skip_space(text, end)) != len(text):
        raise NotPlainJson(f"line {text.count(chr(10), 0, end) + 1}: unexpected text after the end of the JSON value")
    return value


def find_root(text: str) -> int:
    """Return the offset of the top-level value."""
    return _skip_space(text, 0)


def list_members(text: str, start: int) -> list[JsonMember]:
    """Return the members of the object that begins at `start`."""
    found: list[JsonMember] = []
    at = _skip_space(text, start + 1)
    while text[at] != "}":
        begin = at
        name, at = _decoder.raw_decode(text, at)
        value = _skip_space(text, _skip_space(text, at) + 1)
        _, end = _decoder.raw_decode(text, value)
        found.append(JsonMember(name, begin, value, end))
        at = _skip_space(text, end)
        if text[at] == ",":
            at = _skip_space(text, at + 1)
    if len({member.name for member in found}) < len(found):
        raise NotPlainJson(f"line {text.count(chr(10), 0, start) + 1}: an object has a duplicate key")
    return found


def find_member(text: str, start: int, name: str) -> JsonMember | None:
    return next((each for each in list_members(text, start) if each.name == name), None)


def list_elements(text: str, start: int) -> list[tuple[int, int]]:
    """Return the (start, end) offsets of the elements of the array that begins at `start`."""
    found: list[tuple[int, int]] = []
    at = _skip_space(text, start + 1)
    while text[at] != "]":
        _, end = _decoder.raw_decode(text, at)
        found.append((at, end))
        at = _skip_space(text, end)
        if text[at] == ",":
            at = _skip_space(text, at + 1)
    return found


def add_member(text: str, start: int, name: str, value: Any) -> Splice:
    return _add(text, start, [each.end for each in list_members(text, start)], f"{json.dumps(name)}: ", value)


def add_element(text: str, start: int, value: Any) -> Splice:
    return _add(text, start, [end for _, end in list_elements(text, start)], "", value)


def set_value(text: str, at: JsonMember, value: Any) -> Splice:
    return Splice(at.start, text[at.start : at.end], json.dumps(value, ensure_ascii=False))


def remove_member(text: str, start: int, name: str) -> Splice:
    found = list_members(text, start)
    return _remove(text, start, [(each.begin, each.end) for each in found], [each.name for each in found].index(name))


def remove_element(text: str, start: int, index: int) -> Splice:
    return _remove(text, start, list_elements(text, start), index)


def _add(text: str, start: int, ends: Sequence[int], name: str, value: Any) -> Splice:
    inside = text[start + 1 : _skip_space(text, start + 1)]
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
    depth, at = 0, _skip_space(text, 0)
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
        begin, end = start + 1, _skip_space(text, end)
    return Splice(begin, text[begin:end], "")


def _skip_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at
