"""`make bench`: measure against the targets and print a table. No result fails the run.

    python -m bench.run [--rows 100000] [--scale 1] [--large] [--folder FOLDER]

Everything runs in a temporary home, through the `hyp` command and the Python API. Ratios compare with a floor or a
competitor measured in the same run, because times alone say more about the machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import compaction, delivery, executors, gateway, history, index, purge, retention, setup
from bench.measure import HYP, ROOT, Commands, Measured, median

DATASET = "ai_gateway_messages"
COUNT = f"SELECT count(*) AS n FROM {DATASET}"


class Bench:
    def __init__(self, home: Path, rows: int) -> None:
        self.home = home
        self.rows = rows
        self.appended = 0
        self._commands = Commands(home)
        self.hyp, self.run, self.stop_engine = self._commands.hyp, self._commands.run, self._commands.stop_engine

    def append(self, rows: int) -> dict[str, float]:
        command = [sys.executable, "-m", "bench.append", str(self.home), str(rows), str(self.appended)]
        found: dict[str, float] = json.loads(self.run(command))
        self.appended += rows
        return found

    def flush(self, rows: int) -> float:
        """Append so many rows and return the seconds of `hyp flush`."""
        self.append(rows)
        began = time.perf_counter()
        report = self.hyp("flush")
        spent = time.perf_counter() - began
        written = sum(dataset["rows_written"] for dataset in report["datasets"])
        if written != rows:
            raise SystemExit(f"{rows} rows were appended and {written} committed: not a measurement")
        return spent


def startup(bench: Bench) -> Iterator[Measured]:
    spent = median(9, lambda: bench.run([str(HYP), "--help"]))
    bare = median(9, lambda: bench.run([sys.executable, "-c", "import click"]))
    yield Measured("`hyp --help`", "≤ 0.3 s", f"{spent:.2f} s ({spent / bare:.1f} × `import click`)", spent <= 0.3)


def appending(bench: Bench) -> Iterator[Measured]:
    bench.hyp("flush")  # makes the home
    found = bench.append(bench.rows)
    speed = found["rows"] / found["append"]
    yield Measured("append, batches of 1,000, one process", "≥ 50,000 rows/s", f"{speed:,.0f} rows/s", speed >= 50_000)
    yield Measured("append against its floor", "–", f"{found['append'] / found['floor']:.1f} ×")
    yield Measured("memory of a process that only appends", "≤ 60 MB", f"{found['mb']:.0f} MB", found["mb"] <= 60)
    bench.hyp("flush")


def flushing(bench: Bench) -> Iterator[Measured]:
    rows = bench.rows
    bench.hyp("engine", "stop")
    cold = bench.flush(rows)
    yield Measured(f"flush of {rows:,} spooled rows, cold", "–", f"{cold:.1f} s")
    warm = bench.flush(rows)
    yield Measured(f"flush of {rows:,} spooled rows, warm", "≤ 12 s", f"{warm:.1f} s", warm <= 12)
    more = bench.flush(3 * rows)
    beyond = 2 * rows / (more - warm) if more > warm else float("inf")
    yield Measured("rows/s beyond that, warm", "≥ 10,000 rows/s", f"{beyond:,.0f} rows/s", beyond >= 10_000)
    few = statistics.median(bench.flush(100) for _ in range(5))
    yield Measured("flush of 100 rows, warm", "≤ 1 s", f"{few:.2f} s", few <= 1)


def counting(bench: Bench) -> Iterator[Measured]:
    import hypaware

    lake = hypaware.open_lake(bench.home)

    def count() -> None:
        (found,) = lake.query(COUNT, refresh="never").to_pylist()
        if found["n"] != bench.appended:
            raise SystemExit(f"{bench.appended} rows were appended and {found['n']} are there: not a measurement")

    count()
    spent = median(9, count)
    yield Measured(f"`count(*)` of {bench.appended:,} rows, warm", "≤ 0.3 s", f"{spent:.2f} s", spent <= 0.3)
    command = [str(HYP), "query", "sql", COUNT, "--refresh", "never", "--format", "json"]
    spent = median(5, lambda: bench.run(command))
    yield Measured("the same as a command, with its start", "–", f"{spent:.2f} s")


def keeping(folder: Path, rows: int) -> Iterator[Measured]:
    yield from compaction.measure(folder / "compaction", 1000)
    yield from retention.measure(folder / "retention", rows)
    with history.temporary_home(folder, "purge") as commands:
        yield from purge.measure(commands, rows)


@contextmanager
def temporary_bench(rows: int) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="hyp-bench-") as folder:
        bench = Bench(Path(folder) / "home", rows)
        try:
            yield bench
        finally:
            bench.stop_engine()


@dataclass(frozen=True)
class Options:
    rows: int
    scale: float
    large: bool
    folder: Path | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the large flushes")
    parser.add_argument("--scale", type=float, default=1.0, help="of the history to import; 1 is 500 MB")
    parser.add_argument("--large", action="store_true", help="lakes of 10 million rows instead of one")
    parser.add_argument("--folder", type=Path, help="where made-up histories are kept for the next time")


def everyday(options: Options, _: Path) -> Iterator[Measured]:
    with temporary_bench(options.rows) as bench:
        for measure in (startup, appending, flushing, counting):
            yield from measure(bench)


SECTIONS: dict[str, Callable[[Options, Path], Iterator[Measured]]] = {
    "everyday": everyday,
    "import": lambda options, folder: history.measure(options.folder or folder, options.scale),
    "index": lambda options, folder: index.measure(options.folder or folder, options.scale),
    "executors": lambda options, folder: executors.measure(options.folder or folder, options.scale),
    "delivery": lambda options, folder: delivery.measure(folder, options.large),
    "keeping": lambda options, folder: keeping(folder, 10_000_000 if options.large else 1_000_000),
    "setup": lambda options, folder: setup.measure(options.folder or folder, options.scale),
    "gateway": lambda options, folder: gateway.measure(folder),
}
"""What is measured, in this order. Each section gets an empty folder."""


def measure_section(name: str, options: Options) -> Iterator[Measured]:
    with tempfile.TemporaryDirectory(prefix=f"hyp-{name}-") as folder:
        yield from SECTIONS[name](options, Path(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures against the targets of docs/performance.md.")
    add_arguments(parser)
    options = Options(**vars(parser.parse_args()))
    print("| work | target | measured | |\n|---|---|---|---|", flush=True)
    for name in SECTIONS:
        for found in measure_section(name, options):
            print(found.line(), flush=True)
    print("\nCold start, against plain Spark:\n", flush=True)
    subprocess.run([sys.executable, ROOT / "bench" / "cold_start.py"], check=True)


if __name__ == "__main__":
    main()
