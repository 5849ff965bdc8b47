"""Sending homes and receiving servers for the delivery benchmarks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.history import temporary_home
from bench.measure import HYP, Commands, seconds
from hypaware import config
from hypaware.engine import client
from hypaware.home import Home

DATASET = "ai_gateway_messages"
# Far from the sequences of any lake here.
_FIRST_NEW = 100_000_000


class Sender:
    """A home with sinks."""

    def __init__(self, commands: Commands) -> None:
        self.commands = commands
        self.home = Home(commands.home)
        self._sinks: list[str] = []
        self._appended = 0

    def declare(self, name: str, **settings: str) -> None:
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
        self._sinks.append(f"[sinks.{name}]\n{lines}")
        self.home.root.mkdir(exist_ok=True)
        self.home.config.write_text("version = 1\n" + "".join(self._sinks))

    def add(self, rows: int) -> None:
        """Add and commit new rows."""
        first = str(_FIRST_NEW + self._appended)
        self.commands.run([sys.executable, "-m", "bench.append", str(self.home.root), str(rows), first])
        self._appended += rows
        written = sum(dataset["rows_written"] for dataset in self.commands.hyp("flush")["datasets"])
        if written != rows:
            raise SystemExit(f"{rows} rows were appended and {written} committed: not a measurement")

    def export(self, *sinks: str, rows: int) -> tuple[float, int]:
        """Return the seconds of the command and the bytes sent."""
        reports: list[dict[str, Any]] = []
        spent = seconds(lambda: reports.append(self.commands.hyp("export", *sinks)))
        streams = _streams(reports[0])
        check(sum(stream["rows"] for stream in streams), rows)
        return spent, sum(stream["bytes"] for stream in streams)

    def round(self, sink: str, budget: int | None = None) -> tuple[float, int]:
        """Return seconds and rows of a round in the running engine, without the start-up of a command."""
        asked = {"sinks": [sink], "max_wait": 0.0, "budget": budget}
        settings = config.load(self.home)
        reports: list[dict[str, Any]] = []
        engine = client.choose_engine(self.home, settings)
        spent = seconds(lambda: reports.append(client.run_job(engine, "export", asked)))
        return spent, sum(stream["rows"] for stream in _streams(reports[0]))


def _streams(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [stream for sink in report["sinks"] for stream in sink["streams"]]


def cpu_seconds(pid: int) -> tuple[float, float]:
    """Return the CPU time of a process, and that of its children."""
    process = psutil.Process(pid)
    own, *children = (sum(each.cpu_times()[:2]) for each in (process, *process.children(recursive=True)))
    return own, sum(children)


def check(delivered: int, rows: int) -> None:
    if delivered != rows:
        raise SystemExit(f"{rows} rows were new and {delivered} delivered: not a measurement")


@dataclass(frozen=True)
class Receiver:
    """A running `hyp server run`."""

    url: str
    token: str
    token_file: Path
    pid: int


@contextmanager
def receiving(folder: Path, name: str) -> Iterator[Receiver]:
    """Run a server with its own home. It does not flush, so that only receiving is measured."""
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
                yield Receiver(address, token, token_file, process.pid)
            finally:
                process.terminate()
