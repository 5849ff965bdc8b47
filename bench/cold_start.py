"""Time from a cold process to the first result, compared with plain Spark on the same table, in turns.

    python bench/cold_start.py [ROUNDS]

Plain Spark follows the documentation of PySpark and Iceberg: a session builder with `spark.jars`, through
spark-submit. Both count and group a small Iceberg table; the clock starts before Python does. Our class archive is
built first, because `hyp engine install` builds it.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hypaware.engine import class_archive, jars
from hypaware.home import cache_dir

TABLE = "hyp.hypaware.cold"
ANSWERS = ("session", "count", "group by")

_ASK = f"""
def ask(spark, mark):
    mark("session")
    spark.sql("SELECT count(*) FROM {TABLE}").collect()
    mark("count")
    spark.sql("SELECT model, role, count(*) FROM {TABLE} GROUP BY model, role ORDER BY 1, 2").collect()
    mark("group by")
"""

_TIMED = """
import json, sys, time
from pathlib import Path
began, home = float(sys.argv[1]), Path(sys.argv[2])
marks = {}
def mark(name):
    marks[name] = time.time() - began
"""

_OURS = """
from hypaware.engine.session import open_session
from hypaware.home import Home

session = open_session(Home(home))
ask(session.spark, mark)
session.close()
print(json.dumps(marks))
"""

_PLAIN = """
from pyspark.sql import SparkSession
catalog = "spark.sql.catalog.hyp"
spark = (
    SparkSession.builder.master("local[*]")
    .config("spark.jars", sys.argv[3])
    .config("spark.sql.warehouse.dir", str(home / "plain"))
    .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
    .config(catalog, "org.apache.iceberg.spark.SparkCatalog")
    .config(f"{catalog}.type", "jdbc")
    .config(f"{catalog}.uri", f"jdbc:sqlite:{home}/lake/catalog.db?journal_mode=WAL")
    .config(f"{catalog}.jdbc.schema-version", "V1")
    .config(f"{catalog}.warehouse", f"file://{home}/lake/warehouse")
    .getOrCreate()
)
ask(spark, mark)
spark.stop()
print(json.dumps(marks))
"""

_SEED = f"""
import sys
from pathlib import Path
from hypaware.engine.session import open_session
from hypaware.home import Home
session = open_session(Home(Path(sys.argv[1])))
session.spark.sql("CREATE NAMESPACE hyp.hypaware")
session.spark.sql(
    "CREATE TABLE {TABLE} (seq bigint, source string, at timestamp, model string, role string, body string) "
    "USING iceberg PARTITIONED BY (source, days(at))"
)
for day in range(1, 5):
    session.spark.sql(
        f"INSERT INTO {TABLE} SELECT id, 'claude', timestamp '2026-11-0{{day}} 10:00:00', concat('m', id % 3), "
        "concat('r', id % 2), repeat('x', 100) FROM range(1000)"
    )
session.close()
"""


def main(rounds: int) -> None:
    paths = jars.install_jars(cache_dir(), unheard).paths
    class_archive.ensure_archive(cache_dir(), unheard)
    with tempfile.TemporaryDirectory(prefix="hyp-cold-") as folder:
        home = Path(folder)
        run(_SEED, str(home))
        plain: list[dict[str, float]] = []
        ours: list[dict[str, float]] = []
        for _ in range(rounds):
            plain.append(timed(_PLAIN, str(home), ",".join(map(str, paths))))
            ours.append(timed(_OURS, str(home)))
    print("| to the end of | plain Spark | ours | ratio |\n|---|---|---|---|")
    for answer in ANSWERS:
        one, two = (statistics.median(found[answer] for found in side) for side in (plain, ours))
        print(f"| {answer} | {one:.2f} s | {two:.2f} s | {two / one:.2f} |")
    ratio = statistics.median(mine["count"] / theirs["count"] for mine, theirs in zip(ours, plain, strict=True))
    verdict = "met" if ratio <= 0.5 else "missed"
    print(f"\nFirst answer from cold, median of {rounds}: {ratio:.2f} × plain Spark's (target ≤ 0.5 ×: {verdict})")


def timed(code: str, *args: str) -> dict[str, float]:
    found: dict[str, float] = json.loads(run(_TIMED + _ASK + code, str(time.time()), *args).splitlines()[-1])
    return found


def run(code: str, *args: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return done.stdout


def unheard(message: str, done: float, total: float) -> None:
    pass


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
