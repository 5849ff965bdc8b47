"""Other programs read the tables as docs/recipes.md says, and see each row once."""

from __future__ import annotations

import importlib.resources
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import duckdb

from hypaware.engine import jars
from hypaware.home import Home, cache_dir
from hypaware.iceberg import metadata
from tests.support.command import Hyp
from tests.support.rows import rows

PAGE = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8").split("## Other readers")[1]
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(LOOKUP,) = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
DATASET = "ai_gateway_messages"


def extension(name: str) -> str:
    """Return the path of an extension of DuckDB, signed by its makers, for the installed version."""
    package = importlib.resources.files(f"duckdb_extension_{name}")
    return str(package / "extensions" / f"v{duckdb.__version__}" / f"{name}.duckdb_extension")


def test_every_reader_of_the_page_sees_each_row_once_after_a_compaction(hyp: Hyp) -> None:
    for start in range(0, 60, 20):
        hyp.ingest(rows(20, start=start))
        hyp.ok("flush")
    hyp.ok("maintain", "--force")
    with duckdb.connect() as other:
        pattern = f"{hyp.home}/lake/warehouse/**/*.parquet"
        (found,) = other.execute(f"SELECT count(*) FROM read_parquet('{pattern}')").fetchall()
    assert found[0] > 60, "the page says so, and the test would prove nothing otherwise"

    assert len(PROGRAMS) == 4
    installed = ",".join(map(str, jars.find_installed_jars(cache_dir())))
    for program in PROGRAMS:
        here = program.replace("/home/dev/.hyp", str(hyp.home))
        here = here.replace('"spark.jars.packages", packages', f'"spark.jars", "{installed}"')
        # Tests need no network: DuckDB's extensions come from packages.
        here = here.replace('"INSTALL iceberg"', f'"LOAD {extension("avro")!r}"')
        here = here.replace('"LOAD iceberg"', f'"LOAD {extension("iceberg")!r}"')
        done = subprocess.run([sys.executable, "-c", here], capture_output=True, text=True, check=False)
        assert done.stdout.split()[-1:] == ["60"], f"{program}\n{done.stdout}{done.stderr[-2000:]}"

    entry = metadata.find_table(Home(hyp.home), DATASET)
    assert entry is not None
    with closing(sqlite3.connect(hyp.home / "lake" / "catalog.db")) as catalog:
        ((location,),) = catalog.execute(LOOKUP).fetchall()
    assert Path(location.removeprefix("file:")) == entry.metadata
    assert hyp.ok("verify", "--deep")["ok"] is True
