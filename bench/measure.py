"""Shared parts of the benchmarks: a line of the table, the `hyp` command, medians, the engine's memory."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
HYP = Path(sys.executable).with_name("hyp")
_SECONDS_BETWEEN_SAMPLES = 0.5


@dataclass(frozen=True)
class Measured:
    work: str
    target: str
    value: str
    met: bool | None = None

    def line(self) -> str:
        verdict = {True: "met", False: "missed", None: ""}[self.met]
        return f"| {self.work} | {self.target} | {self.value} | {verdict} |"


class Commands:
    """Runs commands for one home."""

    def __init__(self, home: Path, **environment: str) -> None:
        self.home = home
        self.environment = {**os.environ, "HYP_HOME": str(home), **environment}

    def hyp(self, *args: str, **environment: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run([str(HYP), *args, "--json"], **environment))
        return found

    def run(self, command: list[str], **environment: str) -> bytes:
        """Return a command's stdout; stderr is shown only if it fails."""
        chosen = {**self.environment, **environment}
        done = subprocess.run(command, env=chosen, cwd=ROOT, capture_output=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed\n{done.stdout.decode()}{done.stderr.decode()}")
        return done.stdout

    def build_index(self) -> None:
        """Wait until all rows are indexed. Until then, reading commands answer from a part of a large import."""
        self.hyp("usage")
        while (status := self.hyp("index", "status"))["lag_rows"] or status["building"]:
            time.sleep(_SECONDS_BETWEEN_SAMPLES)

    def stop_engine(self) -> None:
        subprocess.run([HYP, "engine", "stop"], env=self.environment, stdout=subprocess.DEVNULL, check=False)


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def median(times: int, work: Callable[[], object]) -> float:
    return statistics.median(seconds(work) for _ in range(times))


class Peak:
    """Peak memory of an engine with its JVM and workers, in bytes (PSS)."""

    bytes = 0

    def look(self, engine: psutil.Process) -> None:
        found = 0
        for process in (engine, *engine.children(recursive=True)):
            try:
                memory = process.memory_full_info()
            except psutil.Error:
                continue
            found += getattr(memory, "pss", memory.uss)
        self.bytes = max(self.bytes, found)


@contextmanager
def watched_memory(commands: Commands, every: float = _SECONDS_BETWEEN_SAMPLES) -> Iterator[Peak]:
    """Sample memory inside the block, from the start of the home's engine."""
    peak, done = Peak(), threading.Event()

    def watch() -> None:
        engine: psutil.Process | None = None
        while not done.wait(every):
            try:
                engine = engine or _engine_of(commands.home)
                if engine is not None:
                    peak.look(engine)
            except psutil.Error:
                engine = None

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()


def _engine_of(home: Path) -> psutil.Process | None:
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if "hypaware.engine.process" in line and str(home) in line:
            return process
    return None
