"""Measure retention: `python -m bench.retention [--large] [--folder FOLDER]`.

A third of the days of a large lake expire at once: 10 million rows of 500 days with --large, else one million of 50.
The daemon's check for due work is measured before and after.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from bench.history import temporary_home
from bench.large_lake import DATASET, ROWS_A_DAY
from bench.measure import Commands, Measured, median, seconds
from hypaware import config
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.maintain.task import find_due_datasets
from hypaware.state.home_opener import open_home


def measure(folder: Path, rows: int) -> Iterator[Measured]:
    with temporary_home(folder, "keeping") as commands:
        home = Home(commands.home)
        commands.run([sys.executable, "-m", "bench.large_lake", str(home.root), str(rows)])
        entry = metadata.find_table(home, DATASET)
        assert entry
        days = sorted(
            {file.day for file in metadata.iter_live_files(metadata.read_metadata(entry.metadata)) if file.day}
        )
        first_kept = days[len(days) // 3]
        gone = len(days) // 3 * ROWS_A_DAY
        commands.hyp("engine", "start")
        commands.hyp("query", "sql", f"SELECT count(*) FROM {DATASET}")
        files = _data_files(home)
        keep = datetime.now(UTC).date() - first_kept
        commands.hyp("config", "set", "retention.default_days", str(keep.days))
        before = median(5, _look(home, due=True))
        report, spent = _maintained(commands)
        if (report["rows_expired"], _data_files(home)) != (gone, files):
            raise SystemExit(f"{gone} rows should have gone, and no file: {report}")
        after = median(5, _look(home, due=False))
        yield Measured(
            f"retention of {len(days) // 3} of {len(days)} days ({gone:,} of {rows:,} rows), warm, as a command",
            "≤ 5 s, no data file written",
            f"{spent:.1f} s, {report['files_before']:,} → {report['files_after']:,} files",
            spent <= 5,
        )
        yield Measured(
            "is anything due? before · after, without Spark",
            "≤ 1 s",
            f"{1000 * before:.0f} ms · {1000 * after:.0f} ms",
            max(before, after) <= 1,
        )


def _maintained(commands: Commands) -> tuple[dict[str, int], float]:
    found: list[dict[str, int]] = []
    spent = seconds(lambda: found.extend(commands.hyp("maintain", "--expire-only")["datasets"]))
    (report,) = found
    return report, spent


def _look(home: Home, *, due: bool) -> Callable[[], None]:
    settings = config.load(home)

    def look() -> None:
        with closing(open_home(home).store) as store:
            if bool(find_due_datasets(home, settings, store, datetime.now(UTC), "expire")) != due:
                raise SystemExit("due when it is not, or not when it is")

    return look


def _data_files(home: Home) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in home.warehouse.rglob("*.parquet")}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures retention against its targets.")
    parser.add_argument("--large", action="store_true", help="a lake of 10 million rows instead of one million")
    parser.add_argument("--folder", type=Path, help="where the home is made, and removed again")
    args = parser.parse_args()
    print("| work | target | measured | |\n|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="hyp-retention-") as folder:
        for found in measure(args.folder or Path(folder), 10_000_000 if args.large else 1_000_000):
            print(found.line(), flush=True)


if __name__ == "__main__":
    main()
