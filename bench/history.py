"""Measure the import of a large history against its floor: `python -m bench.history [--scale 1] [--folder FOLDER]`.

`bench.transcripts` makes the history (kept in FOLDER, if given). One home is warm: its engine has already imported.
Another is cold: its engine starts with the command. The floor is measured next to each, because the speed of a machine
varies. Small histories before and after the large one show whether the size of the lake matters.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import transcripts
from bench.measure import HYP, Commands, Measured, median, seconds, watched_memory
from bench.transcripts import History

SMALL = 100
"""How many times smaller the small histories are."""
_ROUNDS = 3
_GROUP = "SELECT model, role, count(*) AS n FROM ai_gateway_messages GROUP BY model, role"
_LIKE = "SELECT count(*) AS n FROM ai_gateway_messages WHERE content_text LIKE '%return%'"
_COUNT = "SELECT count(*) AS n FROM ai_gateway_messages"


class Histories:
    """Histories, generated on first use: `large`, and small ones by number."""

    def __init__(self, folder: Path, scale: float) -> None:
        self._folder = folder
        self._scale = scale

    def large(self) -> tuple[Path, History]:
        return self._made(1, self._scale)

    def small(self, number: int) -> tuple[Path, History]:
        return self._made(number + 1, self._scale / SMALL)

    def _made(self, seed: int, scale: float) -> tuple[Path, History]:
        folder = self._folder / f"history-{seed}-{scale:g}"
        history = transcripts.load(folder) or transcripts.generate(folder, seed=seed, **transcripts.scaled(scale))
        # Read once, so that the first measurement does not pay for the disk.
        for path in transcripts.files(folder):
            path.read_bytes()
        return folder, history


class Importing:
    """Imports into one home, with the rows that it must hold."""

    def __init__(self, commands: Commands) -> None:
        self.commands = commands
        self._rows = 0
        self._tokens: Counter[str] = Counter()

    def add(self, made: tuple[Path, History]) -> float:
        """Return the seconds of the command."""
        folder, history = made
        spent, written = self._import(folder)
        if written != history.rows:
            raise SystemExit(f"{history.rows} rows are in {folder} and {written} were written: not a measurement")
        self._rows += history.rows
        self._tokens.update(history.tokens)
        return spent

    def again(self, made: tuple[Path, History]) -> float:
        spent, written = self._import(made[0])
        if written:
            raise SystemExit(f"{written} rows were written a second time: not a measurement")
        return spent

    def check(self) -> None:
        """Check that the lake holds the rows and tokens of the generated histories."""
        self.commands.build_index()
        totals = self.commands.hyp("query", "overview")["totals"]
        found = {name: totals[name] for name in self._tokens}
        if totals["parts"] != self._rows or found != self._tokens:
            raise SystemExit(f"the lake says {totals}, but {self._rows} rows and {dict(self._tokens)} went in")

    def _import(self, folder: Path) -> tuple[float, int]:
        reports = []
        spent = seconds(lambda: reports.append(self.commands.hyp("backfill", "claude", CLAUDE_CONFIG_DIR=str(folder))))
        (provider,) = reports[0]["providers"]
        return spent, provider["rows_written"]


def measure(folder: Path, scale: float) -> Iterator[Measured]:
    folder.mkdir(parents=True, exist_ok=True)
    histories = Histories(folder, scale)
    made = histories.large()
    rows, size = made[1].rows, f"{made[1].bytes / 1e6:,.0f} MB, {made[1].lines:,} lines"
    with temporary_home(folder, "warm") as commands:
        importing = Importing(commands)
        importing.add(histories.small(1))
        into_small = statistics.median(importing.add(histories.small(number)) for number in range(2, 2 + _ROUNDS))
        floor = measure_floor(commands, folder, made)
        yield Measured(f"floor: {size}", "–", f"{floor:.1f} s, {rows / floor:,.0f} rows/s")
        with watched_memory(commands) as peak:
            warm = importing.add(made)
        yield Measured("import of it, warm, against the floor", "≤ 1.3 ×", _against(warm, floor), warm <= 1.3 * floor)
        yield _memory("memory of engine and workers, warm", peak.bytes)
        again = median(_ROUNDS, lambda: importing.again(made))
        yield Measured("import again, nothing changed, warm", "≤ 1 s", f"{again:.2f} s", again <= 1)
        into_large = statistics.median(importing.add(histories.small(number)) for number in range(5, 5 + _ROUNDS))
        ratio = into_large / into_small
        yield Measured(
            f"import of 1/{SMALL} of it into the large lake, against a small one",
            "flat",
            f"{ratio:.2f} × ({into_large:.2f} s, {into_small:.2f} s)",
            ratio <= 1.3,
        )
        importing.check()
        yield from _asking(commands)
    with temporary_home(folder, "cold") as commands:
        floor = measure_floor(commands, folder, made)
        importing = Importing(commands)
        with watched_memory(commands) as peak:
            cold = importing.add(made)
        yield Measured("import of it, cold, against the floor", "≤ 2 ×", _against(cold, floor), cold <= 2 * floor)
        yield _memory("memory of engine and workers, cold", peak.bytes)
        importing.check()


def _asking(commands: Commands) -> Iterator[Measured]:
    for work, sql, target in (
        ("`count(*)`", _COUNT, 0.3),
        ("group by model, role", _GROUP, 0.6),
        ("LIKE over text", _LIKE, 1.5),
    ):
        command = [str(HYP), "query", "sql", sql, "--refresh", "never", "--format", "json"]
        commands.run(command)
        spent = median(5, lambda command=command: commands.run(command))  # type: ignore[misc]
        yield Measured(f"{work}, as a command, warm", f"≤ {target} s", f"{spent:.2f} s", spent <= target)
    overview = median(_ROUNDS, lambda: commands.hyp("query", "overview"))
    yield Measured("`hyp query overview`, warm", "–", f"{overview:.1f} s")


def measure_floor(commands: Commands, folder: Path, made: tuple[Path, History]) -> float:
    with tempfile.TemporaryDirectory(prefix="floor-", dir=folder) as out:
        told = json.loads(commands.run([sys.executable, "-m", "bench.floor", str(made[0]), out]))
    if told["rows"] != made[1].rows:
        raise SystemExit(f"{made[1].rows} rows are there and the floor found {told['rows']}: not a measurement")
    return float(told["seconds"])


@contextmanager
def temporary_home(folder: Path, name: str) -> Iterator[Commands]:
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=folder) as home:
        commands = Commands(Path(home) / "home")
        try:
            yield commands
        finally:
            commands.stop_engine()


def _against(spent: float, floor: float) -> str:
    return f"{spent / floor:.2f} × ({spent:.1f} s, {floor:.1f} s)"


def _memory(work: str, peak: int) -> Measured:
    return Measured(work, "≤ 1.5 GB", f"{peak / 1e9:.2f} GB", peak <= 1.5e9)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the import of a large history against its floor.")
    parser.add_argument("--scale", type=float, default=1.0, help="1 is 500 MB in 376,036 lines")
    parser.add_argument("--folder", type=Path, help="where histories are kept for the next time")
    args = parser.parse_args()
    print("| work | target | measured | |\n|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="hyp-history-") as folder:
        for found in measure(args.folder or Path(folder), args.scale):
            print(found.line(), flush=True)


if __name__ == "__main__":
    main()
