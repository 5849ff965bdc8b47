"""Delivery against its targets: `python -m bench.delivery [--large] [--folder FOLDER]`.

Rows go from real homes to real destinations: `hyp server run` over loopback, and a folder. Forwarding is compared with
its floor (`bench.delivery_floor`), measured in turns with it. A large lake is compared with a small one, in turns too:
10 million rows with --large, else one million.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.history import temporary_home
from bench.measuring import HYP, ROOT, Commands, Measured, median, seconds, watched_memory

DATASET = "ai_gateway_messages"
_ROUNDS = 3
_SMALL_LAKE = 100_000
_NEW_ROWS = 1_000
# Far from those of any lake here.
_FIRST_NEW = 100_000_000


class Home:
    """A home with sinks."""

    def __init__(self, commands: Commands) -> None:
        self.commands = commands
        self.path = commands.home
        self._sinks: list[str] = []
        self._appended = 0

    def declare(self, name: str, **settings: str) -> None:
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
        self._sinks.append(f"[sinks.{name}]\n{lines}")
        self.path.mkdir(exist_ok=True)
        (self.path / "config.toml").write_text("version = 1\n" + "".join(self._sinks))

    def add(self, rows: int) -> None:
        """Rows that were not there before, committed."""
        first = str(_FIRST_NEW + self._appended)
        self.commands.run([sys.executable, "-m", "bench.append", str(self.path), str(rows), first])
        self._appended += rows
        written = sum(dataset["rows_written"] for dataset in self.commands.hyp("flush")["datasets"])
        if written != rows:
            raise SystemExit(f"{rows} rows were appended and {written} committed: not a measurement")

    def export(self, *sinks: str, rows: int) -> tuple[float, int]:
        """Seconds of the command, and the bytes that were sent."""
        reports: list[dict[str, Any]] = []
        spent = seconds(lambda: reports.append(self.commands.hyp("export", *sinks)))
        return spent, _checked(reports[0], rows)

    def round(self, sink: str, rows: int) -> float:
        """Seconds of a round in the running engine, without the start of a command."""
        from hypaware import config, home
        from hypaware.engine import client

        asked = {"sinks": [sink], "max_wait": 0.0, "budget": None}
        where = home.Home(self.path)
        reports: list[dict[str, Any]] = []
        spent = seconds(lambda: reports.append(client.run_job(where, config.load(where), "export", asked)))
        _checked(reports[0], rows)
        return spent


def _checked(report: dict[str, Any], rows: int) -> int:
    streams = [stream for sink in report["sinks"] for stream in sink["streams"]]
    delivered = sum(stream["rows"] for stream in streams)
    if delivered != rows:
        raise SystemExit(f"{rows} rows were new and {delivered} delivered: not a measurement")
    return sum(stream["bytes"] for stream in streams)


@dataclass
class Receiver:
    """A running `hyp server run`."""

    url: str
    token: str
    token_file: Path


@contextmanager
def receiving(folder: Path, name: str) -> Iterator[Receiver]:
    """A server with a home of its own; it only receives, so that no flush takes part in what is measured."""
    with temporary_home(folder, name) as commands:
        token = commands.hyp("server", "token", "create")["token"]
        token_file = commands.home.with_name("token")
        token_file.write_text(token)
        command = [str(HYP), "server", "run", "--listen", "127.0.0.1:0", "--no-flush"]
        with subprocess.Popen(
            command, env=commands.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout
            try:
                address = process.stdout.readline().removeprefix("listening on ").strip()
                if not address:
                    raise SystemExit("the server does not start: not a measurement")
                yield Receiver(address, token, token_file)
            finally:
                process.terminate()


def measure(folder: Path, large: bool) -> Iterator[Measured]:
    folder.mkdir(parents=True, exist_ok=True)
    yield from forwarding(folder)
    yield from resting(folder)
    yield from growing(folder, 10_000_000 if large else 1_000_000)
    yield from receiving_batches(folder)


def forwarding(folder: Path, rows: int = 200_000) -> Iterator[Measured]:
    ours: list[float] = []
    floors: dict[int, list[float]] = {1: [], 2: []}
    with temporary_home(folder, "sender") as commands:
        home = Home(commands)
        home.add(rows)
        # The first time is the engine's warming up.
        for number in range(_ROUNDS + 1):
            with receiving(folder, "receiver") as server:
                home.declare(f"team{number}", kind="forward", url=server.url, token_file=str(server.token_file))
                spent, size = home.export(f"team{number}", rows=rows)
            if number:
                ours.append(rows / spent)
                for connections, found in floors.items():
                    found.append(rows / _floor(commands, folder, rows, connections))
    speed = statistics.median(ours)
    floor = {connections: statistics.median(found) for connections, found in floors.items()}
    yield Measured(
        f"floor of forwarding {rows:,} rows of {size / rows:,.0f} bytes: one connection · two",
        "–",
        f"{floor[1]:,.0f} · {floor[2]:,.0f} rows/s",
    )
    best = max(floor.values())
    yield Measured(
        "`hyp export` of them to a server over loopback, warm, against the faster floor",
        "≥ 60 %",
        f"{speed / best:.0%} ({speed:,.0f} rows/s, {speed * size / rows / 1e6:,.0f} MB/s)",
        speed >= 0.6 * best,
    )
    yield Measured("rows/s of it", "≥ 50,000 rows/s", f"{speed:,.0f} rows/s", speed >= 50_000)


def _floor(commands: Commands, folder: Path, rows: int, connections: int) -> float:
    with tempfile.TemporaryDirectory(prefix="floor-", dir=folder) as out:
        command = [sys.executable, "-m", "bench.delivery_floor", out, str(rows), str(connections)]
        return float(json.loads(commands.run(command))["seconds"])


def resting(folder: Path) -> Iterator[Measured]:
    """Ten sinks with two sources each."""
    with temporary_home(folder, "resting") as commands:
        home = Home(commands)
        for number in range(10):
            home.declare(f"sink{number}", kind="blob", destination=str(commands.home / f"out{number}"))
        home.add(_NEW_ROWS)
        home.export(rows=10 * _NEW_ROWS)
        commands.stop_engine()
        decision = median(20, _decision(home.path))
        yield Measured(
            "round with nothing new, 20 streams: the decision", "≤ 50 ms", f"{1000 * decision:.0f} ms", decision <= 0.05
        )
        command = median(5, lambda: home.export(rows=0))
        state = commands.hyp("engine", "status")["state"]
        yield Measured(
            "the same as a command, with its start; an engine after it",
            "none",
            f"{command:.2f} s; {'none' if state == 'stopped' else state}",
            state == "stopped",
        )


def _decision(path: Path) -> Callable[[], None]:
    """As the command makes it: the home and its state are opened each time."""
    from hypaware import config, home
    from hypaware.export.status import idle
    from hypaware.opening import open_home

    where = home.Home(path)
    settings = config.load(where)

    def decide() -> None:
        opened = open_home(where)
        try:
            streams = idle(where, settings, opened.store, list(settings.sinks))
        finally:
            opened.store.close()
        if streams is None or len(streams) != 20:
            raise SystemExit("the home has something to deliver: not a measurement")

    return decide


@dataclass
class Lake:
    """A home whose lake was all delivered, to which rows are added."""

    home: Home
    rows: int
    rounds: list[float] = field(default_factory=list)
    scanned: int = 0
    cut: int = 0

    def deliver_new_rows(self) -> None:
        before = self._high_waters()
        self.home.add(_NEW_ROWS)
        self.rounds.append(self.home.round("archive", _NEW_ROWS))
        scanned, cut = _read_again(self.home.path, before, self._high_waters())
        self.scanned, self.cut = max(self.scanned, scanned), max(self.cut, cut)

    def _high_waters(self) -> dict[str, int]:
        streams = self.home.commands.hyp("export", "status")["streams"]
        return {stream["source"]: stream["high_water"] for stream in streams}


def growing(folder: Path, rows: int) -> Iterator[Measured]:
    with temporary_home(folder, "small") as small, temporary_home(folder, "large") as large:
        lakes = [Lake(Home(small), _SMALL_LAKE), Lake(Home(large), rows)]
        for lake in lakes:
            lake.home.declare("archive", kind="blob", destination=str(lake.home.path / "out"), encoder="parquet")
            lake.home.commands.run([sys.executable, "-m", "bench.large_lake", str(lake.home.path), str(lake.rows)])
            with watched_memory(lake.home.commands) as memory:
                spent, _ = lake.home.export(rows=lake.rows)
        third = max(1, len(memory.samples) // 3)
        first, last = max(memory.samples[:third], default=0), max(memory.samples[-third:], default=0)
        yield Measured(
            f"first export of {rows:,} rows to a folder, Parquet, engine cold", "–", f"{rows / spent:,.0f} rows/s"
        )
        yield Measured(
            "memory of the engine meanwhile (PSS): its peak in the last third, against the first",
            "flat",
            f"{last / first:.2f} × ({last / 1e6:.0f} MB, {first / 1e6:.0f} MB; {memory.bytes / 1e6:.0f} MB at most)",
            last <= 1.15 * first,
        )
        for lake in lakes:
            lake.deliver_new_rows()
            lake.rounds.clear()
        for _ in range(2 * _ROUNDS + 1):
            for lake in lakes:
                lake.deliver_new_rows()
        times = [statistics.median(lake.rounds) for lake in lakes]
        yield Measured(
            f"round with {_NEW_ROWS:,} new rows in {rows:,}, warm, against {_SMALL_LAKE:,}",
            "≤ 1.3 ×",
            f"{times[1] / times[0]:.2f} × ({1000 * times[1]:.0f} ms, {1000 * times[0]:.0f} ms)",
            times[1] <= 1.3 * times[0],
        )
        scanned, cut = lakes[1].scanned, lakes[1].cut
        yield Measured(
            "rows scanned for them",
            f"≤ {2 * _NEW_ROWS:,} and a row group of each file that is cut",
            f"{scanned:,}, {cut:,} rows in such row groups",
            scanned <= 2 * _NEW_ROWS + cut,
        )


def _read_again(path: Path, before: dict[str, int], after: dict[str, int]) -> tuple[int, int]:
    """The rows that a delivery of the range scans, and those in row groups that the range cuts."""
    from hypaware.export.lake_rows import LakeRows
    from hypaware.home import Home as Place
    from hypaware.lake import metadata, row_groups

    rows, place = LakeRows(Place(path)), Place(path)
    for source, high_water in after.items():
        at = before[source]
        while at < high_water:
            at = asyncio.run(rows.page(DATASET, source, at, high_water)).reached
    entry = metadata.entry(place, DATASET)
    assert entry
    cut = sum(
        group.numbered
        for file in metadata.live_files(metadata.read(entry.metadata))
        for group in row_groups.of_file(file.path)
        if file.source in after
        and group.min_seq is not None
        and group.max_seq is not None
        and any(group.min_seq <= end < group.max_seq for end in (before[file.source], after[file.source]))
    )
    return rows.scanned, cut


def receiving_batches(folder: Path, batches: int = 2_000) -> Iterator[Measured]:
    with receiving(folder, "receiver") as server:
        load = [sys.executable, "-m", "bench.delivery_load", server.url, server.token, "8", str(batches), "100"]
        told = json.loads(subprocess.run(load, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)
    speed, p50, p99 = told["batches"] / told["seconds"], 1000 * told["p50"], 1000 * told["p99"]
    yield Measured(
        "server: batches of 100 rows, synced, 8 connections",
        "≥ 200 batches/s, p99 ≤ 100 ms",
        f"{speed:,.0f} batches/s, p50 {p50:.0f} ms, p99 {p99:.0f} ms",
        speed >= 200 and p99 <= 100,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures delivery against its targets.")
    parser.add_argument("--large", action="store_true", help="a lake of 10 million rows instead of one million")
    parser.add_argument("--folder", type=Path, help="where homes are made, and removed again")
    args = parser.parse_args()
    print("| work | target | measured | |\n|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="hyp-delivery-") as folder:
        for found in measure(args.folder or Path(folder), args.large):
            print(found.line(), flush=True)


if __name__ == "__main__":
    main()
