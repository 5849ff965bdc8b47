"""Mutation testing: the mistakes that it makes, and that its explanations are of mistakes that can still be made."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.mutation import __main__ as mutation
from tests.mutation.mutants import list_functions, make_mutants

_MODULE = b'''"""A docstring with 1 == 1."""

LIMIT = 5


class Shelf:
    def fits(self, books: int = 0) -> bool:
        """Return whether 2 < 3."""
        if books < 10 and not self.full:
            log.event("fits", count=1)
            return True
        return books in self.known


def empty(shelf):
    shelf.clear()
    raise ValueError(f"{shelf} has {1 + 1}")
'''


def test_each_mutant_has_one_mistake_inside_a_function() -> None:
    found = {mutant.title for mutant in make_mutants(_MODULE)}
    assert found == {
        "Shelf.fits: books < 10 → books <= 10",
        "Shelf.fits: 10 → 11",
        "Shelf.fits: not self.full → self.full",
        "Shelf.fits: books < 10 and not self.full → books < 10 or not self.full",
        "Shelf.fits: books < 10 and not self.full → not (books < 10 and not self.full)",
        "Shelf.fits: True → False",
        "Shelf.fits: books in self.known → books not in self.known",
        "empty: shelf.clear() → pass",
        'empty: raise ValueError(f"{shelf} has {1 + 1}") → pass',
    }
    assert all(mutant.source != _MODULE for mutant in make_mutants(_MODULE))


def test_the_functions_of_a_mutant_run_with_its_mistake() -> None:
    (mutant,) = (each for each in make_mutants(_MODULE) if "<=" in each.new)
    module = ModuleType("shelves")
    vars(module)["log"] = SimpleNamespace(event=lambda *_, **__: None)
    exec(_MODULE, vars(module))
    shelf = module.Shelf()
    shelf.full, shelf.known = False, ()
    assert not shelf.fits(10)
    module.Shelf.fits.__code__ = list_functions(mutant.source, "shelves.py")["Shelf.fits"]
    assert shelf.fits(10)


@pytest.mark.parametrize("module", sorted(mutation.load_explained()))
def test_every_explained_mutant_exists(module: str) -> None:
    path = Path(mutation.ROOT, "src", "hypaware", *module.split(".")).with_suffix(".py")
    assert mutation.load_explained()[module].keys() <= {mutant.title for mutant in make_mutants(path.read_bytes())}
