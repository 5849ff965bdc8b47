"""Edits of files as diffs: what Edit, MultiEdit, Write, NotebookEdit and apply_patch change, line by line.

A transcript holds the text before and after an edit, not the whole file, so the lines have no numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_CONTEXT = 3
_MAX_COMPARED = 2000
"""Lines; longer texts are shown as removed and added, because comparing them takes quadratic time."""
_PATCH = re.compile(r"\*\*\* (?:Begin Patch|(?:Update|Add|Delete) File: )")
# A string literal in a script that calls tools.
_PATCH_LITERAL = re.compile(r'apply_patch\(\s*("(?:[^"\\]|\\.)*")', re.DOTALL)


class DiffLine(NamedTuple):
    sign: str
    """`+`, `-`, a space, or `@` for a line about the file or a gap."""
    text: str


def list_changes(args: Any) -> list[DiffLine] | None:
    """Return the diff of a tool call with these arguments, or None if it does not edit a file."""
    if isinstance(args, str):
        return _read_patch(args)
    if not isinstance(args, Mapping):
        return None
    edits = args.get("edits")
    if isinstance(edits, list) and edits and all(isinstance(each, Mapping) for each in edits):
        lines: list[DiffLine] = []
        for number, each in enumerate(edits):
            found = _compare_texts(each)
            if found is None:
                return None
            lines += [DiffLine("@", "")] * (number > 0) + found
        return lines
    if (found := _compare_texts(args)) is not None:
        return found
    if isinstance(args.get("file_path"), str) and isinstance(content := args.get("content"), str):
        return [DiffLine("+", line) for line in content.splitlines()]
    if isinstance(args.get("notebook_path"), str) and isinstance(source := args.get("new_source"), str):
        return [DiffLine("+", line) for line in source.splitlines()]
    for name in ("input", "patch", "command", "cmd"):
        given = args.get(name)
        if isinstance(given, list) and given and isinstance(given[-1], str):
            given = given[-1]
        if isinstance(given, str) and (patch := _read_patch(given)) is not None:
            return patch
    return None


def count_changes(lines: list[DiffLine]) -> tuple[int, int]:
    """Return how many lines are added and removed."""
    return sum(line.sign == "+" for line in lines), sum(line.sign == "-" for line in lines)


def _compare_texts(args: Mapping[str, Any]) -> list[DiffLine] | None:
    old, new = args.get("old_string"), args.get("new_string")
    if not isinstance(old, str) or not isinstance(new, str):
        return None
    return list(_compare(old.splitlines(), new.splitlines()))


def _compare(old: list[str], new: list[str]) -> Iterator[DiffLine]:
    if len(old) + len(new) > _MAX_COMPARED:
        yield from (DiffLine("-", line) for line in old)
        yield from (DiffLine("+", line) for line in new)
        return
    from difflib import SequenceMatcher

    groups = list(SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(_CONTEXT))
    for number, group in enumerate(groups):
        if number:
            yield DiffLine("@", "")
        for kind, i1, i2, j1, j2 in group:
            if kind == "equal":
                yield from (DiffLine(" ", line) for line in old[i1:i2])
                continue
            yield from (DiffLine("-", line) for line in old[i1:i2])
            yield from (DiffLine("+", line) for line in new[j1:j2])


def _read_patch(text: str) -> list[DiffLine] | None:
    """Return the lines of a patch in the format of apply_patch, also one within a script or a shell command."""
    if literal := _PATCH_LITERAL.search(text):
        from json import loads

        try:
            text = loads(literal[1], strict=False)
        except ValueError:
            return None
    start = _PATCH.search(text)
    if start is None:
        return None
    lines = []
    for line in text[start.start() :].splitlines():
        if line.startswith("*** "):
            if line == "*** End Patch":
                break
            if line not in ("*** Begin Patch", "*** End of File"):
                lines.append(DiffLine("@", line.removeprefix("*** ")))
        elif line[:1] in ("+", "-", " "):
            lines.append(DiffLine(line[0], line[1:]))
        elif line.startswith("@@"):
            lines.append(DiffLine("@", line.removeprefix("@@").strip()))
    return lines
