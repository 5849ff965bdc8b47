"""Names: modules are nouns, and a public class name is used once."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import hypaware

SOURCE = Path(hypaware.__file__).parent
TESTS = Path(__file__).parents[1]
FILES = sorted(SOURCE.rglob("*.py"))
# Nouns that end in -ing.
NOUNS = {"testing"}
VAGUE = {"utils", "helpers", "common", "misc", "manager", "base"}
LONGEST_MODULE = 600


def test_no_module_name_is_a_gerund() -> None:
    names = [path for path in [*FILES, *(TESTS / "support").rglob("*.py")] if re.search(r"ing(_|$)", path.stem)]

    assert [path.name for path in names if path.stem not in NOUNS] == []


def test_no_module_or_package_name_is_vague() -> None:
    assert [path for path in FILES if VAGUE & {path.stem, path.parent.name}] == []


def test_a_public_class_name_is_used_once() -> None:
    places = defaultdict(list)
    for path in FILES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(SOURCE)))

    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_module_is_too_long_to_read() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}

    assert {str(path.relative_to(SOURCE)): lines for path, lines in lengths.items() if lines > LONGEST_MODULE} == {}


def test_every_module_says_what_it_does() -> None:
    assert [path for path in FILES if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))] == []
