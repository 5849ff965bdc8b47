"""Compare two executors with one: the same import and compaction on a standalone cluster on this machine's cores.

    python -m bench.executors [--scale 0.2] [--files 500] [--folder FOLDER]

Both are warm: engine and executors have already imported a small history. Wall times mean something only on an idle
machine. CPU seconds do on any: those of the driver (the engine and its JVM) and of the executors with their Python
workers. They bound the ratio. On two cores, one executor has a core and the driver the other; two executors share both
with the driver. So with E seconds of work in executors and D in the driver, two take at least (D + E) / 2, and the
ratio is at most 2 E / (D + E), however well the work is spread.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.history import Histories, Importing, temporary_home
from bench.measure import HYP, Commands, Measured, seconds
from tests.support.spark_cluster import cluster

FILES = 500
_READ_ALL = "SELECT count(*), max(length(content_text)) FROM ai_gateway_messages"


@dataclass(frozen=True)
class Spent:
    wall: float
    driver: float
    executors: float

    @property
    def bound(self) -> float:
        """The highest ratio of two executors to one that two cores allow, from this run with one."""
        return 2 * self.executors / (self.driver + self.executors)


@dataclass(frozen=True)
class Site:
    """A cluster with some executors, and a home whose engine uses it."""

    commands: Commands

    def measure(self, work: Callable[[], float]) -> Spent:
        before = self._cpu()
        wall = work()
        driver, executors = (after - earlier for earlier, after in zip(before, self._cpu(), strict=True))
        return Spent(wall, driver, executors)

    def _cpu(self) -> tuple[float, float]:
        engine = psutil.Process(int((self.commands.home / "run" / "engine.pid").read_text()))
        workers = [each for each in psutil.Process().children() if "worker.Worker" in " ".join(each.cmdline())]
        return _cpu_of_tree(engine), sum(map(_cpu_of_tree, workers))


def _cpu_of_tree(root: psutil.Process) -> float:
    """Return the CPU seconds of a process and of all below it, also of those that have ended."""
    found = 0.0
    for each in (root, *root.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            found += sum(each.cpu_times()[:4])
    return found


@contextmanager
def site(folder: Path, executors: int) -> Iterator[Site]:
    with (
        tempfile.TemporaryDirectory(prefix="cluster-", dir=folder) as place,
        cluster(Path(place) / "cluster", workers=executors, cores=1) as address,
        temporary_home(folder, f"executors-{executors}") as commands,
    ):
        commands.hyp("config", "set", "engine.master", address)
        yield Site(commands)


def measure(folder: Path, scale: float, files: int = FILES) -> Iterator[Measured]:
    folder.mkdir(parents=True, exist_ok=True)
    histories = Histories(folder, scale)
    # Generated first, so that neither run pays for it.
    histories.large()
    yield from _compare("import", *(_import(folder, histories, executors) for executors in (1, 2)))
    yield from _compare(f"compaction of {files} files", *(_compact(folder, files, executors) for executors in (1, 2)))


def _compare(work: str, one: Spent, two: Spent) -> Iterator[Measured]:
    yield Measured(
        f"{work} on two executors against one",
        "≥ 1.7 ×",
        f"{one.wall / two.wall:.2f} × ({one.wall:.1f} s, {two.wall:.1f} s)",
        one.wall >= 1.7 * two.wall,
    )
    yield Measured(
        f"CPU of the driver · executors, {work}, one executor; two", "–", f"{_describe(one)}; {_describe(two)}"
    )
    yield Measured("the highest ratio that two cores allow with these", "≥ 1.7 ×", f"{one.bound:.2f} ×")


def _describe(spent: Spent) -> str:
    share = spent.driver / (spent.driver + spent.executors)
    return f"{spent.driver:.1f} · {spent.executors:.1f} s ({share:.0%} in the driver)"


def _import(folder: Path, histories: Histories, executors: int) -> Spent:
    with site(folder, executors) as found:
        importing = Importing(found.commands)
        importing.add(histories.small(1))
        spent = found.measure(lambda: importing.add(histories.large()))
        importing.check()
        return spent


def _compact(folder: Path, files: int, executors: int) -> Spent:
    with site(folder, executors) as found:
        commands = found.commands
        made = [sys.executable, "-m", "bench.small_files", str(commands.home), str(files)]
        commands.run(made)
        # Starts the engine and the executors.
        commands.run([str(HYP), "query", "sql", _READ_ALL, "--format", "json"])
        return found.measure(lambda: seconds(lambda: commands.hyp("maintain", "--force", "--compact-only")))


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures an import and a compaction on two executors against one.")
    parser.add_argument("--scale", type=float, default=0.2, help="of the history; 1 is 500 MB")
    parser.add_argument("--files", type=int, default=FILES, help="small files to compact, of 500 rows")
    parser.add_argument("--folder", type=Path, help="where made-up histories are kept for the next time")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hyp-executors-") as folder:
        for found in measure(args.folder or Path(folder), args.scale, args.files):
            print(found.line(), flush=True)


if __name__ == "__main__":
    main()
