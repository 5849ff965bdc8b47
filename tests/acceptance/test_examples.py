"""The examples for notebooks and other tools run, and agree on how many sessions there are.

`make examples` installs their packages in an environment of its own, whose Python is in HYP_EXAMPLES_PYTHON, and runs
all of them. `make test` checks what can be checked without these packages.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo import stage
from hypaware.home import cache_dir
from hypaware.model import datasets
from tests.support.command import HYP
from tests.support.processes import PATIENCE

EXAMPLES = Path(__file__).parents[2] / "examples/notebooks"
PYTHON = os.environ.get("HYP_EXAMPLES_PYTHON", "")
NAMES = ("with_pandas", "with_polars", "with_duckdb", "with_pyiceberg")
SESSIONS, PARTS = 7, 108
needs_packages = pytest.mark.skipif(not PYTHON, reason="run by make examples")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A home with the history of the demo, and what a user has in the environment."""
    folder = tmp_path_factory.mktemp("examples")
    place = stage.Place(folder / "home", folder / "user")
    stage.create_history(place.user, "sample")
    found = {**place.environment(), "HYP_CACHE": str(cache_dir())}
    run([str(HYP), "backfill"], found, folder)
    yield found
    run([str(HYP), "engine", "stop"], found, folder)


def run(command: list[str], environment: dict[str, str], folder: Path) -> str:
    done = subprocess.run(
        command,
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-3000:]}"
    return done.stdout


def code_cells() -> list[str]:
    cells = json.loads((EXAMPLES / "sessions.ipynb").read_text())["cells"]
    assert all(not cell.get("outputs") for cell in cells), "a notebook is committed without its outputs"
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_every_example_is_run_and_its_code_is_valid() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(NAMES)
    for name in NAMES:
        compile((EXAMPLES / f"{name}.py").read_text(), name, "exec")
    compile("\n".join(code_cells()), "sessions.ipynb", "exec")


def test_the_examples_query_only_columns_that_exist() -> None:
    text = "\n".join([*code_cells(), *((EXAMPLES / f"{name}.py").read_text() for name in NAMES)])
    statements = re.findall(r"SELECT\s+((?:(?!SELECT|FROM).)*)\s+FROM ai_gateway_messages", text, re.DOTALL)
    columns = {column.name for column in datasets.get("ai_gateway_messages").columns}
    used = {word for part in statements for word in re.findall(r"[a-z_]+", re.sub(r"AS \w+|\w+\(|\*", " ", part))}
    assert len(statements) >= 4
    assert used <= columns


@needs_packages
@pytest.mark.spark
@pytest.mark.parametrize("name", NAMES)
def test_an_example_counts_every_session_once(name: str, environment: dict[str, str], tmp_path: Path) -> None:
    out = run([PYTHON, "-W", "error::DeprecationWarning:__main__", str(EXAMPLES / f"{name}.py")], environment, tmp_path)
    assert out.splitlines()[-1] == f"{SESSIONS} sessions", out


@needs_packages
@pytest.mark.spark
def test_the_cells_of_the_notebook_run_in_order(environment: dict[str, str], tmp_path: Path) -> None:
    counts = 'print(sum(row["sessions"] for row in usage["rows"]), sum(roles["parts"].to_pylist()))'
    script = "\n".join([*code_cells(), counts])
    assert run([PYTHON, "-c", script], environment, tmp_path).splitlines()[-1] == f"{SESSIONS} {PARTS}"


@needs_packages
@pytest.mark.spark
def test_jupyter_runs_the_notebook(environment: dict[str, str], tmp_path: Path) -> None:
    script = (
        "import sys, nbformat, nbclient\n"
        "notebook = nbformat.read(sys.argv[1], as_version=4)\n"
        "nbclient.NotebookClient(notebook, timeout=300).execute()\n"
        "print(notebook.cells[-1].outputs[0].data['text/plain'])"
    )
    out = run([PYTHON, "-c", script, str(EXAMPLES / "sessions.ipynb")], environment, tmp_path)
    assert out.splitlines()[-1] == f"[({PARTS},)]"


@needs_packages
@pytest.mark.spark
def test_dbt_builds_the_model_and_its_tests(environment: dict[str, str], tmp_path: Path) -> None:
    project = str(EXAMPLES / "dbt")
    database = tmp_path / "example.duckdb"
    paths = {"DBT_DUCKDB_PATH": str(database), "DBT_TARGET_PATH": str(tmp_path), "DBT_LOG_PATH": str(tmp_path)}
    options = ["--project-dir", project, "--profiles-dir", project, "--no-send-anonymous-usage-stats"]
    command = [PYTHON, "-c", "from dbt.cli.main import cli; cli()", "build", *options]
    run(command, {**environment, **paths}, tmp_path)
    count = "import duckdb, sys; duckdb.connect(sys.argv[1]).sql('select sum(parts)::int from sessions_by_day').show()"
    assert run([PYTHON, "-c", count, str(database)], environment, tmp_path).count(str(PARTS)) == 1
