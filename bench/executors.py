"""Compare two executors with one: the same import on a standalone cluster on this machine's cores.

    python -m bench.executors [--scale 0.2] [--folder FOLDER]

Both are warm: engine and executors have already imported a small history.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.history import Histories, Importing, temporary_home
from bench.measure import Measured
from tests.support.spark_cluster import cluster


def measure(folder: Path, scale: float) -> Iterator[Measured]:
    folder.mkdir(parents=True, exist_ok=True)
    histories = Histories(folder, scale)
    # Generated first, so that neither run pays for it.
    histories.large()
    one, two = (_import(folder, histories, executors) for executors in (1, 2))
    yield Measured(
        "import on two executors against one",
        "≥ 1.7 ×",
        f"{one / two:.2f} × ({one:.1f} s, {two:.1f} s)",
        one >= 1.7 * two,
    )


def _import(folder: Path, histories: Histories, executors: int) -> float:
    with (
        tempfile.TemporaryDirectory(prefix="cluster-", dir=folder) as place,
        cluster(Path(place) / "cluster", workers=executors, cores=1) as address,
        temporary_home(folder, f"executors-{executors}") as commands,
    ):
        commands.hyp("config", "set", "engine.master", address)
        importing = Importing(commands)
        importing.add(histories.small(1))
        spent = importing.add(histories.large())
        importing.check()
        return spent


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures an import on two executors against one.")
    parser.add_argument("--scale", type=float, default=0.2, help="of the history; 1 is 500 MB")
    parser.add_argument("--folder", type=Path, help="where made-up histories are kept for the next time")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hyp-executors-") as folder:
        for found in measure(args.folder or Path(folder), args.scale):
            print(found.line(), flush=True)


if __name__ == "__main__":
    main()
