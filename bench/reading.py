"""Measure every reading command as a command over a home: `python -m bench.reading HOME [--repeat 7]`.

The commands run in turns. A line has the least and the median of their wall times, the least of their CPU times, and
the most memory that one of them took; less than this process itself has cannot be told. The first screen of `hyp show`
is the time until a terminal of 40 lines is full, for a session of ordinary length and the longest one; its CPU time
includes what was rendered beyond it. What is read is in memory after the first turn, which does not count.
`bench.search` has searches of every kind. The home and its index are not changed, unless the index is not complete.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import statistics
import struct
import subprocess
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bench.measure import HYP, Commands, Measured
from hypaware.home import Home
from hypaware.index.store import open_index

_ROWS, _COLUMNS = 40, 160
_ORDINARY_PARTS = 5000
_MAX_BYTES = 200e6


class Run(NamedTuple):
    seconds: float
    cpu: float
    memory: int


@dataclass(frozen=True)
class Command:
    """A command with its target in seconds. On a terminal only the first screen is waited for."""

    name: str
    arguments: Sequence[str]
    target: float
    is_on_terminal: bool = False
    runs: list[Run] = field(default_factory=list, compare=False)


def measure(home: Path, repeat: int) -> Iterator[Measured]:
    environment = {**os.environ, "HYP_HOME": str(home), "TERM": "xterm"}
    for name in ("PAGER", "LESS", "NO_COLOR"):
        environment.pop(name, None)
    Commands(home).build_index()
    rows, chosen = _choose(home)
    for turn in range(repeat + 1):
        for command in chosen:
            found = (_fill_screen if command.is_on_terminal else _run)(command.arguments, environment)
            if turn:
                command.runs.append(found)
    yield Measured("rows", "–", f"{rows:,}")
    for command in chosen:
        walls, cpus, memories = zip(*command.runs, strict=True)
        least, middle, cpu, memory = min(walls), statistics.median(walls), min(cpus), max(memories)
        yield Measured(
            f"`hyp {command.name}",
            f"≤ {command.target * 1e3:.0f} ms, ≤ {_MAX_BYTES / 1e6:.0f} MB",
            f"{least * 1e3:.0f} · {middle * 1e3:.0f} ms, CPU {cpu * 1e3:.0f} ms, {memory / 1e6:.0f} MB",
            middle <= command.target and memory <= _MAX_BYTES,
        )


def _choose(home: Path) -> tuple[int, list[Command]]:
    """Return how many rows are indexed, and the commands, with sessions and words that the index holds."""
    with open_index(Home(home)) as index:
        (rows,) = index.connection.execute("SELECT count(*) FROM parts").fetchone()
        by_length = "SELECT session_id, parts FROM sessions ORDER BY abs(parts - ?) LIMIT 1"
        sizes = (_ORDINARY_PARTS, rows)
        ordinary, longest = (index.connection.execute(by_length, (size,)).fetchone() for size in sizes)
        (title,) = index.connection.execute(
            "SELECT title FROM sessions WHERE title IS NOT NULL ORDER BY started_at DESC LIMIT 1"
        ).fetchone()
    first, second, *_ = [*sorted({word for word in title.split() if word.isalpha()}, key=len, reverse=True), "a", "the"]
    listings = [
        Command(f"{' '.join(arguments)}`", arguments, 0.4)
        for arguments in (
            ["overview"],
            ["usage"],
            ["usage", "--by", "session"],
            ["usage", "--by", "session", "--json"],
            ["sessions", "--limit", "40"],
            ["sessions", "--sort", "cost", "--limit", "20"],
            ["sessions"],
            ["sessions", "--json"],
        )
    ]
    searches = [
        Command(name, ["search", *words], 0.4)
        for name, words in (
            ("search`, one word", [first]),
            ("search`, two words", [first, second]),
            ("search --tool Bash`", ["--tool", "Bash", first]),
        )
    ]
    shows = [
        Command(f"show`, first screen of {parts:,} parts", ["show", session], 0.3, is_on_terminal=True)
        for session, parts in (ordinary, longest)
    ]
    return rows, [*listings, *searches, *shows]


def _run(arguments: Sequence[str], environment: dict[str, str]) -> Run:
    """Run a command in a pipe."""
    with tempfile.TemporaryFile() as errors:
        began = time.perf_counter()
        process = subprocess.Popen([HYP, *arguments], env=environment, stdout=subprocess.PIPE, stderr=errors)
        assert process.stdout is not None
        while process.stdout.read(1 << 20):
            pass
        _, status, usage = os.wait4(process.pid, 0)
        spent = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
        if process.returncode:
            errors.seek(0)
            raise SystemExit(f"hyp {' '.join(arguments)} failed\n{errors.read().decode()}")
    return Run(spent, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def _fill_screen(arguments: Sequence[str], environment: dict[str, str]) -> Run:
    """Run a command until its pager has filled the screen."""
    terminal, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
    began = time.perf_counter()
    process = subprocess.Popen(
        [HYP, *arguments], env=environment, stdin=inner, stdout=inner, stderr=inner, start_new_session=True
    )
    os.close(inner)
    shown = b""
    while shown.count(b"\n") < _ROWS - 1 and (data := _read(terminal)):
        shown += data
    spent = time.perf_counter() - began
    if shown.count(b"\n") < _ROWS - 1:
        raise SystemExit(f"hyp {' '.join(arguments)} did not fill the screen\n{shown.decode(errors='replace')}")
    os.write(terminal, b"q")
    while _read(terminal):
        pass
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    os.close(terminal)
    return Run(spent, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:
        # Linux raises an error when the other side is closed.
        return b""


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the reading commands over a home.")
    parser.add_argument("home", type=Path)
    parser.add_argument("--repeat", type=int, default=7, help="runs of each command, after one that does not count")
    args = parser.parse_args()
    print("| command | target | wall: least · median, CPU, memory | |\n|---|---|---|---|", flush=True)
    for found in measure(args.home, args.repeat):
        print(found.line(), flush=True)


if __name__ == "__main__":
    main()
