"""Compare a flush into a large lake with the same flush into a small one, with a lake of its own or a shared one.

    python -m bench.flush [--small 100000] [--large 10000000] [--rows 100000] [--rounds 5] [--shared]

The lakes are made by `bench.large_lake`, and their keys are put into the index, in order, because a flush would need
many minutes to find them in the files. The flushes go to both in turn, with warm
engines, so what else the machine does costs both the same. CPU is that of the engine with its JVM and workers. With
`--shared`, PostgreSQL (without fsync) and an S3 server of the tests run on this machine; one engine at a time has the
lease of a lake, and each lake has a database and a prefix of its own.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.large_lake import DATASET
from bench.measure import Commands, Measured, seconds
from hypaware.home import Home
from hypaware.lake.key_index import KeyIndex
from hypaware.model import datasets
from hypaware.model.datasets import hash_row_key
from tests.support.shared_lake import SharedLakeServers, new_lake, start_lake_servers

_LIMIT = 1.3


@dataclass
class Lake:
    """A lake of so many rows, and what flushes into it have cost."""

    commands: Commands
    rows: int
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def prepare(self) -> None:
        home = self.commands.home
        self.commands.run([sys.executable, "-m", "bench.large_lake", str(home), str(self.rows)])
        indexing = seconds(lambda: index_keys(Home(home), self.rows))
        print(f"{self.rows:,} keys indexed in {indexing:.0f} s", file=sys.stderr, flush=True)
        # The engine must not end while the other lake is prepared.
        self.commands.hyp("config", "set", "engine.idle_timeout", "6h")
        self._append(1_000, 0)
        self.commands.hyp("flush")

    def flush(self, rows: int, number: int) -> None:
        self._append(rows, (number + 1) * rows)
        before = self._spent()
        self.wall.append(seconds(lambda: self.commands.hyp("flush")))
        self.cpu.append(self._spent() - before)

    def _append(self, rows: int, start: int) -> None:
        self.commands.run([sys.executable, "-m", "bench.append", str(self.commands.home), str(rows), str(start)])

    def _spent(self) -> float:
        """Return the CPU seconds of the engine so far, with those of its JVM and workers."""
        engine = psutil.Process(int((self.commands.home / "run" / "engine.pid").read_text()))
        return sum(sum(each.cpu_times()[:4]) for each in (engine, *engine.children(recursive=True)))


def index_keys(home: Home, rows: int) -> None:
    """Add the keys of the rows of `bench.large_lake`, which leaves them out."""
    dataset = datasets.get(DATASET)
    found = ((hash_row_key(dataset, {"part_id": f"large-{number}#0"}, None), number + 1) for number in range(rows))
    with closing(KeyIndex(home.keys)) as index:
        with index.transaction() as db:
            db.execute("CREATE TEMP TABLE made (hash BLOB, seq INTEGER)")
            db.executemany("INSERT INTO made VALUES (?, ?)", found)
            db.execute("INSERT INTO keys SELECT * FROM made ORDER BY hash")
        if index.count() != rows:
            raise SystemExit(f"the index has {index.count():,} keys")


def measure(lakes: Sequence[Lake], rows: int, rounds: int, profile: str) -> Iterator[Measured]:
    for lake in lakes:
        lake.prepare()
    for number in range(rounds):
        # Each begins once in two rounds.
        for lake in lakes if number % 2 else reversed(lakes):
            lake.flush(rows, number)
    small, large = lakes
    named = f"flush of {rows:,} rows, {profile}, {large.rows:,} rows against {small.rows:,}"
    for what, of_small, of_large in (("wall", small.wall, large.wall), ("CPU", small.cpu, large.cpu)):
        low, high = statistics.median(of_small), statistics.median(of_large)
        value = f"{high / low:.2f} × ({high:.1f} s, {low:.1f} s; least {min(of_large):.1f} s, {min(of_small):.1f} s)"
        yield Measured(f"{named}, {what}", f"≤ {_LIMIT} ×", value, high <= _LIMIT * low)


@contextmanager
def embedded_lakes(folder: Path, sizes: Sequence[int]) -> Iterator[list[Lake]]:
    lakes = [Lake(Commands(folder / f"home-{rows}"), rows) for rows in sizes]
    try:
        yield lakes
    finally:
        for lake in lakes:
            lake.commands.stop_engine()


@contextmanager
def shared_lakes(folder: Path, sizes: Sequence[int]) -> Iterator[list[Lake]]:
    with ExitStack() as stack:
        servers: SharedLakeServers = stack.enter_context(start_lake_servers(folder))
        lakes = []
        for rows in sizes:
            lake = stack.enter_context(new_lake(servers, folder))
            lakes.append(Lake(Commands(lake.machine(f"home-{rows}").home), rows))
            stack.callback(lakes[-1].commands.stop_engine)
        yield lakes


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures how a flush depends on the size of the lake.")
    parser.add_argument("--small", type=int, default=100_000)
    parser.add_argument("--large", type=int, default=10_000_000)
    parser.add_argument("--rows", type=int, default=100_000, help="in each flush")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shared", action="store_true", help="with PostgreSQL and S3")
    args = parser.parse_args()
    profile, open_lakes = ("shared lake", shared_lakes) if args.shared else ("embedded", embedded_lakes)
    with (
        tempfile.TemporaryDirectory(prefix="hyp-flush-") as folder,
        open_lakes(Path(folder), (args.small, args.large)) as lakes,
    ):
        for found in measure(lakes, args.rows, args.rounds, profile):
            print(found.line(), flush=True)


if __name__ == "__main__":
    main()
