"""Edit JSON text in place, without touching any other byte.

The text must be plain JSON: no comments, no NaN, no duplicate keys in the objects that are read. Added lines follow the
indentation of the text; single-line text stays on one line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn

from hypaware.clients.settings_file import Splice, apply_splices

BOM = "\ufeff"
_SPACE = re.compile(r"[ \t\r\n]*")
_INDENT = re.compile(r"[{\[,]\r?\n([ \t]+)[\"{\[]")


class NotPlainJson(ValueError):
    """The text is not plain JSON; the message says why."""


class JsonItem(NamedTuple):
    name: str | None
    """None for an element of an array."""
    begin: int
    """Offset of its name, or else of its value."""
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
    return _skip_space(text, len(BOM) if text.startswith(BOM) else 0)


def list_items(text: str, start: int) -> list[JsonItem]:
    """Return the members of the object, or the elements of the array, that begins at `start`."""
    is_object = text[start] == "{"
    found: list[JsonItem] = []
    at = _skip_space(text, start + 1)
    while text[at] not in "}]":
        name, begin = None, at
        if is_object:
            name, at = _decoder.raw_decode(text, at)
            at = _skip_space(text, _skip_space(text, at) + 1)
        _, end = _decoder.raw_decode(text, at)
        found.append(JsonItem(name, begin, at, end))
        at = _skip_space(text, end)
        if text[at] == ",":
            at = _skip_space(text, at + 1)
    if is_object and len({each.name for each in found}) < len(found):
        raise NotPlainJson(f"line {text.count(chr(10), 0, start) + 1}: an object has a duplicate key")
    return found


def find_member(text: str, start: int, name: str) -> JsonItem | None:
    return next((each for each in list_items(text, start) if each.name == name), None)


def add_value(text: str, start: int, value: Any, member: str | None = None) -> Splice:
    """Return the edit that adds an element, or a member of this name, to the container that begins at `start`."""
    ends = [each.end for each in list_items(text, start)]
    name = "" if member is None else f"{json.dumps(member)}: "
    inside = text[start + 1 : _skip_space(text, start + 1)]
    line_end = "\r\n" if "\r\n" in text else "\n"
    many_lines = "\n" in inside or (not ends and ("\n" in text.strip() or len(text.strip()) <= 2))
    if not many_lines:
        written = name + json.dumps(value, ensure_ascii=False)
        return Splice(ends[-1], "", f", {written}") if ends else Splice(start + 1, "", written)
    indent = found[1] if (found := _INDENT.search(text)) else "  "
    # The indentation of the line on which the container begins gives its depth.
    outer = re.match(r"[ \t]*", text[text.rfind("\n", 0, start) + 1 :])[0]  # type: ignore[index]
    depth = _depth(text, start)
    unit = outer[: len(outer) // depth] if depth and outer and len(outer) % depth == 0 else indent
    body = json.dumps(value, ensure_ascii=False, indent=unit).replace("\n", line_end + outer + unit)
    line = line_end + outer + unit + name + body
    if ends:
        return Splice(ends[-1], "", f",{line}")
    return Splice(start + 1, "", line if "\n" in inside else line + line_end + outer)


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


def remove_item(text: str, start: int, item: int | str) -> Splice:
    """Return the edit that removes a member, by its name, or an element, by its index."""
    found = list_items(text, start)
    index = item if isinstance(item, int) else [each.name for each in found].index(item)
    begin, end = found[index].begin, found[index].end
    if index:
        begin = found[index - 1].end
    elif len(found) > 1:
        end = found[1].begin
    else:
        begin, end = start + 1, _skip_space(text, end)
    return Splice(begin, text[begin:end], "")


def _skip_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


class JsonEdits:
    """Collects edits; each applies to the result of the one before it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.done: list[Splice] = []
        self.created: list[tuple[str, ...]] = []
        self.emptied: set[tuple[str, ...]] = set()
        """Containers from which something was removed."""

    def add(self, edit: Splice) -> None:
        self.done.append(edit)
        self.text = apply_splices(self.text, [edit])

    def find(self, *path: str) -> int | None:
        """Return the offset of the container at this path, or None."""
        start = find_root(self.text)
        for name in path:
            if (found := find_member(self.text, start, name)) is None:
                return None
            start = found.start
        return start

    def ensure(self, empty: Any, *path: str) -> int:
        """Return the offset of a container. It is created if it does not exist, and so are the objects around it."""
        if (start := self.find(*path)) is None:
            outer = self.ensure({}, *path[:-1])
            self.add(add_value(self.text, outer, empty, path[-1]))
            self.created.append(path)
            start = self.find(*path)
            assert start is not None
        return start

    def set(self, value: Any, *path: str) -> None:
        start = self.ensure({}, *path[:-1])
        if found := find_member(self.text, start, path[-1]):
            self.add(Splice(found.start, self.text[found.start : found.end], json.dumps(value, ensure_ascii=False)))
        else:
            self.add(add_value(self.text, start, value, path[-1]))

    def restore(self, previous: Any, *path: str) -> None:
        """Set an earlier value, or remove the member if it had none."""
        if previous is not None:
            self.set(previous, *path)
        elif (start := self.find(*path[:-1])) is not None:
            self.add(remove_item(self.text, start, path[-1]))
            self.emptied.add(path[:-1])

    def remove_empty(self, paths: Iterable[tuple[str, ...]]) -> None:
        """Remove the containers at these paths that are empty, inner ones first."""
        for path in sorted(paths, key=len, reverse=True):
            start = self.find(*path[:-1])
            found = find_member(self.text, start, path[-1]) if start is not None else None
            if start is not None and found and json.loads(self.text[found.start : found.end]) in ({}, []):
                self.add(remove_item(self.text, start, path[-1]))
