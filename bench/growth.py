"""Measure how the cost of everyday commands grows with the lake: `python -m bench.growth [--sizes 100000,300000]`.

One home grows from size to size. At each, the same commands run: a flush and an export of 1,000 new rows, a count with
Spark, usage and search from the index. A cost that follows the news stays flat.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.measure import HYP, Commands, seconds

SIZES = (100_000, 300_000, 1_000_000)
_NEW_ROWS = 1_000
_TURNS = 3
_COUNT = "SELECT count(*) AS n FROM ai_gateway_messages"


class GrowingLake:
    """A home that grows, with a folder as its sink."""

    def __init__(self, folder: Path) -> None:
        self._commands = Commands(folder / "home")
        self._rows = 0
        self._commands.hyp("flush")  # makes the home
        destination = f'{{ kind = "blob", destination = "{folder / "sink"}" }}'
        self._run("config", "set", "sinks.archive", destination)

    def grow_to(self, rows: int) -> None:
        """Grow in flushes of an ordinary size, deliver everything and bring the index up to date."""
        while self._rows < rows:
            self._append(min(100_000, rows - self._rows))
            self._run("flush")
        self._run("export")
        self._commands.build_index()

    def measure(self) -> dict[str, float]:
        """Return the median seconds of each command."""
        count = ("query", "sql", _COUNT, "--refresh", "never", "--format", "json")
        return {
            f"flush {_NEW_ROWS:,} rows": self._median("flush", prepare=lambda: self._append(_NEW_ROWS)),
            f"export {_NEW_ROWS:,} rows": self._median("export", prepare=self._commit_news),
            "count(*)": self._median(*count),
            "usage": self._median("usage"),
            "search": self._median("search", "weekend", "invoice"),
        }

    def stop(self) -> None:
        self._commands.stop_engine()

    def _median(self, *args: str, prepare: Callable[[], object] = lambda: None) -> float:
        times = []
        for _ in range(_TURNS):
            prepare()
            times.append(seconds(lambda: self._run(*args)))
        return statistics.median(times)

    def _commit_news(self) -> None:
        self._append(_NEW_ROWS)
        self._run("flush")

    def _append(self, rows: int) -> None:
        self._commands.run([sys.executable, "-m", "bench.append", str(self._commands.home), str(rows), str(self._rows)])
        self._rows += rows

    def _run(self, *args: str) -> None:
        self._commands.run([str(HYP), *args])


def measure_growth(folder: Path, sizes: Sequence[int]) -> dict[int, dict[str, float]]:
    """Return rows → work → seconds."""
    lake = GrowingLake(folder)
    try:
        found = {}
        for size in sizes:
            lake.grow_to(size)
            found[size] = lake.measure()
        return found
    finally:
        lake.stop()


def growth_table(found: dict[int, dict[str, float]]) -> list[str]:
    """Return a Markdown table: a row for each command, a column for each size."""
    works = list(next(iter(found.values())))
    lines = [f"| command | {' | '.join(f'{size:,} rows' for size in found)} |", "|---" * (len(found) + 1) + "|"]
    for work in works:
        lines.append(f"| {work} | {' | '.join(f'{times[work]:.2f} s' for times in found.values())} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures how the cost of everyday commands grows with the lake.")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="rows of the lake, in rising order")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hyp-growth-") as folder:
        print(*growth_table(measure_growth(Path(folder), [int(size) for size in args.sizes.split(",")])), sep="\n")


if __name__ == "__main__":
    main()
