"""Find the tests for each hazard by reading `@pytest.mark.hazard(n)` in the sources; nothing is run.

Also parses the rows of docs/hazards.md: `| n | what goes wrong | what holds | parts | tests |`.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

# Parts of the product that exist: their hazards must have tests.
LANDED_PARTS = (1, 2, 3, 4, 5)
ALL = range(1, 117)

_ROW = re.compile(r"\| (\d+) \| (.+?) \| (.+?) \| ([\d, ]+) \|.*")


@dataclass(frozen=True)
class Row:
    number: int
    hazard: str
    guard: str
    parts: tuple[int, ...]
    """The parts of the product that must guard against it."""

    @classmethod
    def parse(cls, line: str) -> Row | None:
        found = _ROW.fullmatch(line)
        if not found:
            return None
        number, hazard, guard, parts = found.groups()
        return cls(int(number), hazard, guard, tuple(int(part) for part in parts.split(",")))

    @property
    def landed(self) -> bool:
        return any(part in LANDED_PARTS for part in self.parts)

    def with_tests(self, files: list[str]) -> str:
        shown = [f"[{Path(file).stem}](../{file})" for file in files]
        shown += [f"due: part {part}" for part in self.parts if part not in LANDED_PARTS]
        parts = ", ".join(map(str, self.parts))
        return f"| {self.number} | {self.hazard} | {self.guard} | {parts} | {', '.join(shown)} |"


def collect(tests: Path) -> dict[int, list[str]]:
    """Return the files with a mark for each hazard, relative to the project root."""
    found: dict[int, set[str]] = {}
    for path in sorted(tests.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for number in _numbers(ast.parse(text)) if ".hazard(" in text else ():
            found.setdefault(number, set()).add(path.relative_to(tests.parent).as_posix())
    return {number: sorted(files) for number, files in sorted(found.items())}


def _numbers(tree: ast.Module) -> list[int]:
    """Return the numbers of all marks, including stacked decorators, lists of marks and marks on classes."""
    numbers = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Attribute(attr="mark"), attr="hazard"),
                args=[ast.Constant(value=int(number))],
            ):
                numbers.append(number)
    return numbers
