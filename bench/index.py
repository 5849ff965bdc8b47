"""Measure the index against the import of the same history: `python -m bench.index [--scale 1] [--folder FOLDER]`.

The import is warm: its engine runs. The index is built by a process of its own, which also reports its CPU time and its
peak memory. Then it is refreshed with nothing new, and after 100 rows.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.history import Histories, Importing, temporary_home
from bench.measure import Commands, Measured

_BUILD = """
import json, resource, sys, time
from pathlib import Path
from hypaware.home import Home
from hypaware.index.refresh import refresh_index
began = time.perf_counter()
report = refresh_index(Home(Path(sys.argv[1])))
spent = time.perf_counter() - began
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({
    "rows": report.added, "seconds": spent, "cpu": usage.ru_utime + usage.ru_stime, "mb": usage.ru_maxrss / 1024,
    "pyarrow": "pyarrow" in sys.modules,
}))
"""
_REFRESHES = 9


def measure(folder: Path, scale: float) -> Iterator[Measured]:
    folder.mkdir(parents=True, exist_ok=True)
    histories = Histories(folder, scale)
    made = histories.large()
    with temporary_home(folder, "index") as commands:
        importing = Importing(commands)
        importing.add(histories.small(1))
        imported = importing.add(made)
        built = _refresh(commands)
        rows, size = built["rows"], (commands.home / "index.db").stat().st_size
        spent, cpu = built["seconds"], built["cpu"]
        yield Measured(
            f"index of {made[1].bytes / 1e6:,.0f} MB, against its import",
            "≤ 1.0 ×",
            f"{spent / imported:.2f} × ({spent:.1f} s, {imported:.1f} s)",
            spent <= imported,
        )
        share = size / made[1].bytes
        yield Measured("bytes of the index, of the transcripts'", "≤ 0.35", f"{share:.3f}", share <= 0.35)
        yield Measured("bytes and CPU of the index, per row", "–", f"{size / rows:,.0f} B, {cpu / rows * 1e6:,.0f} µs")
        yield Measured("memory of its build", "≤ 200 MB", f"{built['mb']:,.0f} MB", built["mb"] <= 200)
        none = sorted(_refresh(commands)["seconds"] for _ in range(_REFRESHES))[_REFRESHES // 2]
        yield Measured("refresh with nothing new", "≤ 0.01 s", f"{none:.4f} s", none <= 0.01)
        commands.run([sys.executable, "-m", "bench.append", str(commands.home), "100", "0"])
        yield Measured("refresh after 100 rows in the spool", "–", f"{_refresh(commands)['seconds']:.3f} s")


def _refresh(commands: Commands) -> dict[str, float]:
    found: dict[str, float] = json.loads(commands.run([sys.executable, "-c", _BUILD, str(commands.home)]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the index against the import of the same history.")
    parser.add_argument("--scale", type=float, default=1.0, help="1 is 500 MB in 376,036 lines")
    parser.add_argument("--folder", type=Path, help="where histories are kept for the next time")
    args = parser.parse_args()
    print("| work | target | measured | |\n|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="hyp-index-") as folder:
        for found in measure(args.folder or Path(folder), args.scale):
            print(found.line(), flush=True)


if __name__ == "__main__":
    main()
