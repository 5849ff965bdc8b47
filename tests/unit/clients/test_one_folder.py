"""Adding a client touches one folder: no other code names a client, and its declaration costs little to read."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hypaware
from hypaware import plugins

SOURCE = Path(hypaware.__file__).parent
CLIENTS = plugins.plugin_names(plugins.CLIENTS)
FOLDERS = [SOURCE / "clients" / name for name in CLIENTS]
NAME = re.compile(r"\b(?:" + "|".join(CLIENTS) + r")\b", re.IGNORECASE)
ALLOWED = {
    "cli/sessions.py": "the prefix of Anthropic's model names",
    "page/session_rows.py": "the prefix of Anthropic's model names",
    "clients/original_install.py": "the JavaScript original changes the settings of these two",
    "gateway/projection/anthropic.py": "counts tokens as the transcript does, which holds the API's own blocks",
    "gateway/projection/responses.py": "decodes items as the rollout does, which holds the API's own items",
    "index/parts.py": "the attributes of rows that are in the lake",
    "model/match_keys.py": "the attributes of rows that are in the lake",
    "model/otel_schemas.py": "an example in the description of a column",
    "model/schemas.py": "an example in the description of a column",
    "mcp_tools.py": "an example in the description of an argument",
    "testing/contract.py": "sources of made-up rows",
}
# Values of these arguments are shown to people.
SHOWN = {"examples", "help"}


def named_in_code(tree: ast.AST) -> Iterator[str]:
    """Yield what names a client: imports and texts, without docstrings, examples and helps of commands."""
    shown: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            shown.add(node.value)
        elif isinstance(node, ast.Call):
            values = [keyword.value for keyword in node.keywords if keyword.arg in SHOWN]
            if isinstance(node.func, ast.Name) and node.func.id == "ReadingOption":
                values += node.args[1:2]
            shown.update(part for value in values for part in ast.walk(value))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and re.match(
            r"hypaware\.clients\.(?:" + "|".join(CLIENTS) + r")\b", node.module or ""
        ):
            yield f"import of {node.module}"
        elif (
            isinstance(node, ast.Constant)
            and node not in shown
            and isinstance(node.value, str)
            and NAME.search(node.value)
        ):
            yield repr(node.value)


def list_places(path: Path) -> list[str]:
    return list(named_in_code(ast.parse(path.read_text(encoding="utf-8"))))


FILES = [path for path in sorted(SOURCE.rglob("*.py")) if not any(path.is_relative_to(each) for each in FOLDERS)]


def test_no_client_is_named_outside_of_its_folder() -> None:
    found = {path.relative_to(SOURCE).as_posix(): list_places(path) for path in FILES}

    assert {name: places for name, places in found.items() if places and name not in ALLOWED} == {}


def test_every_exception_is_still_needed() -> None:
    assert [name for name in ALLOWED if not list_places(SOURCE / name)] == []


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.name))
def test_a_client_names_no_other_client(folder: Path) -> None:
    others = set(CLIENTS) - {folder.name}
    named = {
        found.lower() for path in folder.rglob("*.py") for text in list_places(path) for found in NAME.findall(text)
    }

    assert named & others == set()


def test_reading_all_declarations_imports_no_part() -> None:
    code = (
        "import sys; from hypaware import plugins; from hypaware.clients.client import Client\n"
        "found = plugins.load_declarations(plugins.CLIENTS, Client)\n"
        "print(*(each.name for each in found))\n"
        "print(*(name for name in sys.modules if name.startswith('hypaware.clients.') and name.count('.') > 2))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names, modules = done.stdout.split("\n")[:2]

    assert set(names.split()) >= set(CLIENTS)
    assert modules == ""
