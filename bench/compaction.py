"""Measure compaction: `python -m bench.compaction [--files 1000] [--folder FOLDER]`.

A lake of small files (`bench.small_files`) is compacted by a warm engine, through the same jobs as a user's command.
Queries run before and after, each until it is warm.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.history import temporary_home
from bench.measure import Commands, Measured, seconds, watched_memory
from bench.small_files import DATASET, ROWS
from hypaware import config
from hypaware.engine import client
from hypaware.home import Home

_ROUNDS = 5
_FROM_METADATA = f"SELECT count(*) AS n FROM {DATASET}"
_QUERIES = {
    "count of one role": f"SELECT count(*) AS n FROM {DATASET} WHERE role = 'user'",
    "group by model, role": f"SELECT model, role, count(*) AS n FROM {DATASET} GROUP BY model, role",
    "LIKE over text": f"SELECT count(*) AS n FROM {DATASET} WHERE content_text LIKE '%12345%'",
}


def measure(folder: Path, files: int) -> Iterator[Measured]:
    folder.mkdir(parents=True, exist_ok=True)
    with temporary_home(folder, "small-files") as commands:
        made = json.loads(commands.run([sys.executable, "-m", "bench.small_files", str(commands.home), str(files)]))
        yield Measured(f"a lake of {files:,} files of {ROWS} rows, made", "–", f"{made['seconds']:.0f} s")
        asked = _Asked(commands)
        before = {name: asked.query(sql) for name, sql in _QUERIES.items()}
        counted = asked.query(_FROM_METADATA)
        with watched_memory(commands, every=0.2) as memory:
            spent, report = asked.compact()
        if report["errors"] or report["files_before"] != files:
            raise SystemExit(f"{report}: not a measurement")
        yield Measured(
            f"compaction of them into {report['files_after']:,}, warm, {report['bytes_before'] / 1e6:,.0f} MB",
            "≤ 30 s",
            f"{spent:.1f} s",
            spent <= 30,
        )
        yield Measured("memory of engine and workers during it (PSS)", "–", f"{memory.bytes / 1e9:.2f} GB")
        again, report = asked.compact()
        if report["reason"] != "nothing to do":
            raise SystemExit(f"{report}: not a measurement")
        yield Measured("a second run", "≤ 1 s", f"{again:.2f} s", again <= 1)
        after = asked.query(_FROM_METADATA)
        told = f"{counted / after:.1f} × ({1000 * counted:,.0f} ms, {1000 * after:,.0f} ms)"
        yield Measured("`count(*)`, which reads no file, before against after, warm", "–", told)
        for name, sql in _QUERIES.items():
            after = asked.query(sql)
            ratio = before[name] / after
            told = f"{ratio:.1f} × ({1000 * before[name]:,.0f} ms, {1000 * after:,.0f} ms)"
            yield Measured(f"{name}, before against after, warm", "≥ 5 ×", told, ratio >= 5)


class _Asked:
    """Run jobs in the home's engine; the first job starts it."""

    def __init__(self, commands: Commands) -> None:
        self._home = Home(commands.home)
        self._settings = config.load(self._home)

    def query(self, sql: str) -> float:
        """Return the median of some rounds, after two warm-up rounds."""
        asked = {"sql": sql, "format": "json", "refresh": "never"}
        return statistics.median([seconds(lambda: self._run("query", asked)) for _ in range(2 + _ROUNDS)][2:])

    def compact(self) -> tuple[float, dict[str, Any]]:
        reports: list[dict[str, Any]] = []
        spent = seconds(lambda: reports.append(self._run("maintain", {"only": "compact"})))
        (report,) = reports[0]["datasets"]
        return spent, report

    def _run(self, job: str, args: dict[str, Any]) -> dict[str, Any]:
        return client.run_job(client.choose_engine(self._home, self._settings), job, args)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures compaction against its targets.")
    parser.add_argument("--files", type=int, default=1_000, help="how many small files")
    parser.add_argument("--folder", type=Path, help="where homes are made, and removed again")
    args = parser.parse_args()
    print("| work | target | measured | |\n|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="hyp-compaction-") as folder:
        for found in measure(args.folder or Path(folder), args.files):
            print(found.line(), flush=True)


if __name__ == "__main__":
    main()
