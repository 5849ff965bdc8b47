"""The layers: the table in ARCHITECTURE.md, compared with the imports in the source."""

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
ROW = re.compile(r"^\| `(\w+)` \| .+? \|(.*)\|$", re.MULTILINE)
# package or module at the top of hypaware -> libraries that it must not import; in the order of the layers
LAYERS = {
    package: re.findall(r"`([\w.]+)`", libraries)
    for package, libraries in ROW.findall(ARCHITECTURE.read_text(encoding="utf-8"))
}
ORDER = list(LAYERS)
FILES = sorted(SOURCE.rglob("*.py"))


def layer_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def module_of(path: Path) -> str:
    return ".".join(("hypaware", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


MODULES = {module_of(path): path for path in FILES}


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield every imported name, from inside functions and type-checking blocks too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports are not used"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_the_table_names_every_package_and_module_once() -> None:
    assert sorted(ORDER) == sorted({layer_of(path) for path in FILES} - {"__init__"})


@pytest.mark.parametrize("package", ORDER)
def test_a_package_imports_only_lower_layers(package: str) -> None:
    higher = set(ORDER[ORDER.index(package) + 1 :])
    violations = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path in FILES
        if layer_of(path) == package
        for name in imports(parse(path))
        if name.startswith("hypaware.") and name.split(".")[1] in higher
    ]

    assert violations == []


@pytest.mark.parametrize("package", [package for package, libraries in LAYERS.items() if libraries])
def test_a_package_does_not_import_the_libraries_that_it_must_not_know(package: str) -> None:
    violations = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path in FILES
        if layer_of(path) == package
        for name in imports(without_type_checking(parse(path)))
        if any(name == library or name.startswith(f"{library}.") for library in LAYERS[package])
    ]

    assert violations == []


def without_type_checking(tree: ast.Module) -> ast.Module:
    tree.body = [
        node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
    ]
    return tree


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions count too. A module may import the package that it is part of."""
    edges = {module: imported_modules(module, path) for module, path in MODULES.items()}
    finished: set[str] = set()
    path: list[str] = []

    def visit(module: str) -> None:
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in finished:
            path.append(module)
            for imported in sorted(edges[module]):
                visit(imported)
            path.pop()
            finished.add(module)

    for module in sorted(edges):
        visit(module)


def imported_modules(module: str, path: Path) -> set[str]:
    names = set(imports(without_type_checking(parse(path))))
    found = {name if name in MODULES else name.rpartition(".")[0] for name in names} & MODULES.keys()
    return {name for name in found if not f"{module}.".startswith(f"{name}.")}


@pytest.mark.parametrize("package", ["model", "spool", "state", "config", "telemetry", "cli"])
def test_importing_all_modules_of_a_package_does_not_load_spark(package: str) -> None:
    modules = [module for module, path in MODULES.items() if layer_of(path) == package and "__main__" not in module]
    script = f"import sys\nimport {', '.join(modules)}\nprint(*({{'pyspark', 'py4j'}} & set(sys.modules)))"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
