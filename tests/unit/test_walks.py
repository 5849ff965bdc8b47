"""docs/design/walks.md names real functions, in an order in which they call each other, and counts them correctly."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "hypaware"
_HOP = re.compile(r"(⇢ )?`([a-z_0-9/]+\.py):([A-Za-z_0-9.]+)`")
_COUNTS = re.compile(r"^(\d+) functions in (\d+) files\.", re.MULTILINE)
LIMITS = {"backfill": (82, 29), "export": (40, 18), "live": (56, 25), "purge": (70, 25)}
"""Walk → the largest number of functions and of files. Inline what only forwards before you raise one."""


@dataclass(frozen=True)
class Hop:
    module: str
    function: str
    is_entered_from_outside: bool

    @property
    def called_as(self) -> str:
        """The name by which a caller names it: its class for what `Class(…)` or `with Class(…)` calls."""
        owner, _, name = self.function.rpartition(".")
        return owner if name in ("__init__", "__enter__") else name


def walks() -> dict[str, str]:
    text = (ROOT / "docs" / "design" / "walks.md").read_text(encoding="utf-8")
    _, *sections = re.split(r'<a id="([a-z]+)"></a>\n', text)
    return dict(zip(sections[::2], sections[1::2], strict=True))


def hops(section: str) -> list[Hop]:
    return [Hop(module, function, bool(mark)) for mark, module, function in _HOP.findall(section)]


@cache
def functions(module: str) -> dict[str, ast.AST]:
    """Every function of a module by its qualified name, without functions inside functions."""
    tree = ast.parse((PACKAGE / module).read_text(encoding="utf-8"))
    scopes: list[tuple[str, ast.Module | ast.ClassDef]] = [("", tree)]
    scopes += [(f"{node.name}.", node) for node in tree.body if isinstance(node, ast.ClassDef)]
    return {
        f"{prefix}{node.name}": node
        for prefix, scope in scopes
        for node in scope.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def names_in(hop: Hop) -> set[str]:
    nodes = list(ast.walk(functions(hop.module)[hop.function]))
    return {node.id for node in nodes if isinstance(node, ast.Name)} | {
        node.attr for node in nodes if isinstance(node, ast.Attribute)
    }


WALKED = [name for name, section in walks().items() if hops(section)]


def test_every_walk_is_described() -> None:
    assert set(WALKED) == set(LIMITS)


@pytest.mark.parametrize("walk", WALKED)
def test_every_function_of_a_walk_exists(walk: str) -> None:
    assert [hop for hop in hops(walks()[walk]) if hop.function not in functions(hop.module)] == []


@pytest.mark.parametrize("walk", WALKED)
def test_every_hop_of_a_walk_is_called_by_an_earlier_one_or_is_marked(walk: str) -> None:
    first, *others = hops(walks()[walk])
    called = names_in(first)
    unreached = []
    for hop in others:
        if not hop.is_entered_from_outside and hop.called_as not in called:
            unreached.append(f"{hop.module}:{hop.function}")
        called |= names_in(hop)

    assert unreached == []


@pytest.mark.parametrize("walk", WALKED)
def test_the_counts_of_a_walk_are_right(walk: str) -> None:
    section = walks()[walk]
    passed = hops(section)
    counted = len({(hop.module, hop.function) for hop in passed}), len({hop.module for hop in passed})

    stated = _COUNTS.search(section)
    assert stated is not None
    assert (int(stated[1]), int(stated[2])) == counted


@pytest.mark.parametrize("walk", LIMITS)
def test_a_walk_stays_short(walk: str) -> None:
    passed = hops(walks()[walk])
    functions_allowed, files_allowed = LIMITS[walk]

    assert len({(hop.module, hop.function) for hop in passed}) <= functions_allowed
    assert len({hop.module for hop in passed}) <= files_allowed
