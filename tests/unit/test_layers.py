"""Who may know what: the table in ARCHITECTURE.md, held against the imports in the source."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hypaware

SOURCE = Path(hypaware.__file__).parent
ARCHITECTURE = Path(__file__).parents[2] / "ARCHITECTURE.md"
ROW = re.compile(r"^\| `(\w+)` \| .+? \| (.+) \|$", re.MULTILINE)
RULES = {
    package: re.findall(r"`([\w.]+)`", forbidden)
    for package, forbidden in ROW.findall(ARCHITECTURE.read_text(encoding="utf-8"))
}
PACKAGES = sorted(path.parent.name for path in SOURCE.glob("*/*.py") if path.parent.name != "__pycache__")


def imports(path: Path) -> Iterator[str]:
    """Everything that a file imports, also within functions; what only a type checker sees counts too."""
    package = ("hypaware", *path.relative_to(SOURCE).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*above, *([node.module] if node.module else [])))
            yield from (f"{module}.{alias.name}" for alias in node.names)


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def test_the_table_names_every_package() -> None:
    assert sorted(RULES) == sorted(set(PACKAGES))


@pytest.mark.parametrize("package", RULES)
def test_a_package_imports_nothing_that_it_must_not_know(package: str) -> None:
    broken = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path in sorted((SOURCE / package).rglob("*.py"))
        for name in imports(path)
        if any(within(name, forbidden) for forbidden in RULES[package])
    ]

    assert broken == []


def test_nothing_but_the_command_itself_imports_the_command_line() -> None:
    importing = [path for path in SOURCE.rglob("*.py") if any(within(name, "hypaware.cli") for name in imports(path))]

    assert [path for path in importing if path.parent != SOURCE / "cli"] == []


def test_only_one_module_of_the_state_knows_sqlite() -> None:
    knowing = [path.name for path in (SOURCE / "state").glob("*.py") if "sqlite3" in set(imports(path))]

    assert knowing == ["store.py"]


@pytest.mark.parametrize("package", ["model", "spool", "state", "config", "telemetry", "cli"])
def test_importing_a_package_with_all_its_modules_brings_in_no_spark(package: str) -> None:
    modules = [
        ".".join(("hypaware", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
        for path in sorted((SOURCE / package).rglob("*.py"))
    ]
    script = f"import sys\nimport {', '.join(modules)}\nprint(*({{'pyspark', 'py4j'}} & set(sys.modules)))"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
