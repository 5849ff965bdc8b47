"""Measure delivery: `python -m bench.delivery [--large] [--folder FOLDER]`.

Rows go from real homes to real destinations: `hyp server run` over loopback, and a folder. Forwarding is compared with
its floor (`bench.delivery_floor`), measured in turns with it. A large lake is compared with a small one, in turns too:
10 million rows with --large, else one million.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.delivery_growth import growing
from bench.delivery_homes import Receiver, Sender, cpu_seconds, receiving
from bench.history import temporary_home
from bench.measure import ROOT, Commands, Measured, median
from hypaware import config
from hypaware.export.status import find_idle_streams
from hypaware.home import Home
from hypaware.state.home_opener import open_home

_ROUNDS = 3
_FEW_ROWS = 1_000


def measure(folder: Path, large: bool) -> Iterator[Measured]:
    folder.mkdir(parents=True, exist_ok=True)
    yield from forwarding(folder)
    yield from resting(folder)
    yield from growing(folder, 10_000_000 if large else 1_000_000)
    yield from receiving_batches(folder)


def forwarding(folder: Path, rows: int = 200_000) -> Iterator[Measured]:
    ours: list[float] = []
    cpu: list[tuple[float, ...]] = []
    floors: dict[int, list[float]] = {1: [], 2: []}
    with temporary_home(folder, "sender") as commands:
        sender = Sender(commands)
        sender.add(rows)
        # The first run warms up the engine and the server, which is long-lived in real use.
        for number in range(_ROUNDS + 1):
            with receiving(folder, "receiver") as server:
                _load(server, connections=2, batches=10, rows=3_000)
                sender.declare(f"team{number}", kind="forward", url=server.url, token_file=str(server.token_file))
                engine = int(commands.hyp("engine", "start")["pid"])
                before = (cpu_seconds(engine)[0], *cpu_seconds(server.pid))
                spent, size = sender.export(f"team{number}", rows=rows)
                after = (cpu_seconds(engine)[0], *cpu_seconds(server.pid))
            if number:
                ours.append(rows / spent)
                cpu.append(tuple(1e6 * (end - start) / rows for start, end in zip(before, after, strict=True)))
                for connections, found in floors.items():
                    found.append(_floor(commands, folder, rows // 2, connections))
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
    yield Measured("rows/s of it", "≥ 60,000 rows/s", f"{speed:,.0f} rows/s", speed >= 60_000)
    parts = " · ".join(f"{statistics.median(found):.1f}" for found in zip(*cpu, strict=True))
    yield Measured("CPU per row: sender · server · its validation workers", "–", f"{parts} µs")


def _floor(commands: Commands, folder: Path, rows: int, connections: int) -> float:
    """Return rows/s. The floor has no warm-up, so fewer rows are enough."""
    with tempfile.TemporaryDirectory(prefix="floor-", dir=folder) as out:
        command = [sys.executable, "-m", "bench.delivery_floor", out, str(rows), str(connections)]
        return rows / float(json.loads(commands.run(command))["seconds"])


def resting(folder: Path) -> Iterator[Measured]:
    """Measure a round with nothing new: ten sinks with two sources each."""
    with temporary_home(folder, "resting") as commands:
        sender = Sender(commands)
        for number in range(10):
            sender.declare(f"sink{number}", kind="blob", destination=str(commands.home / f"out{number}"))
        sender.add(_FEW_ROWS)
        sender.export(rows=10 * _FEW_ROWS)
        commands.stop_engine()
        decision = median(20, _decision(sender.home))
        yield Measured(
            "round with nothing new, 20 streams: the decision", "≤ 50 ms", f"{1000 * decision:.0f} ms", decision <= 0.05
        )
        command = median(5, lambda: sender.export(rows=0))
        state = commands.hyp("engine", "status")["state"]
        yield Measured(
            "the same as a command, with its start; an engine after it",
            "≤ 0.25 s; none",
            f"{command:.2f} s; {'none' if state == 'stopped' else state}",
            command <= 0.25 and state == "stopped",
        )


def _decision(home: Home) -> Callable[[], None]:
    """Time the decision as the command makes it: the home and its state are opened each time."""
    settings = config.load(home)

    def decide() -> None:
        opened = open_home(home)
        try:
            streams = find_idle_streams(home, settings, opened.store, list(settings.sinks))
        finally:
            opened.store.close()
        if streams is None or len(streams) != 20:
            raise SystemExit("the home has something to deliver: not a measurement")

    return decide


def receiving_batches(folder: Path, batches: int = 2_000) -> Iterator[Measured]:
    with receiving(folder, "receiver") as server:
        told = _load(server, connections=8, batches=batches, rows=100)
    speed, p50, p99 = told["batches"] / told["seconds"], 1000 * told["p50"], 1000 * told["p99"]
    yield Measured(
        "server: batches of 100 rows, synced, 8 connections",
        "≥ 200 batches/s, p99 ≤ 100 ms",
        f"{speed:,.0f} batches/s, p50 {p50:.0f} ms, p99 {p99:.0f} ms",
        speed >= 200 and p99 <= 100,
    )


def _load(server: Receiver, connections: int, batches: int, rows: int) -> dict[str, float]:
    asked = [server.url, server.token, *map(str, (connections, batches, rows))]
    done = subprocess.run(
        [sys.executable, "-m", "bench.delivery_load", *asked], cwd=ROOT, capture_output=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"the server could not be loaded\n{done.stderr.decode()}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


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
