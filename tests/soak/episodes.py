"""The kinds of episodes of a soak. Each episode has a seed and a folder of its own, which is kept if it fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.soak import mixed_use, team_use
from tests.soak.summary import Impossible, Outcome
from tests.unit.export import test_random_deliveries

ROOT = Path(__file__).parents[2]
SCHEDULES, CRASH_POINTS, RANDOM, MIXED, TEAM = "schedules", "crash points", "random tests", "mixed", "team"
_DAY_HOURS = 24
_HOURS_PER_EPISODE = 6
# How much longer than in `make test` the randomised tests run.
_FACTOR = 3


def run_schedule(folder: Path, seed: int) -> Counter[str]:
    test_random_deliveries.run(folder, seed)
    return Counter({SCHEDULES: 1})


def run_kills_at_points(folder: Path, seed: int) -> Counter[str]:
    """Run the kills of one test file, at those points too that `make test` leaves out."""
    file = _pick_file(seed, "crash_at", "HYP_CRASH_AT", "crash_points")
    return Counter({"tests that kill at a crash point": _run_tests(folder, file, seed, 1, ("-k", "kill or crash"))})


def run_random_tests(folder: Path, seed: int) -> Counter[str]:
    """Run one file of randomised tests, with new numbers and for longer."""
    file = _pick_file(seed, "HYP_SOAK", "@given")
    return Counter({"randomised tests": _run_tests(folder, file, seed, _FACTOR, (f"--hypothesis-seed={seed}",))})


def _pick_file(seed: int, *words: str) -> Path:
    """Return the test file whose turn it is, of those that hold one of the words."""
    files = [
        path
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if any(word in path.read_text(encoding="utf-8") for word in words)
    ]
    return files[seed % len(files)]


def _run_tests(folder: Path, file: Path, seed: int, factor: int, options: tuple[str, ...]) -> int:
    """Run the tests of a file and return how many passed. Fail if one fails."""
    report = folder / "report.txt"
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-o", "timeout=0", "-m", "not real_clients", *options]
    with open(report, "wb") as output:
        done = subprocess.run(
            [*command, "--basetemp", str(folder / "tmp"), str(file)],
            cwd=ROOT,
            env={**os.environ, "HYP_SOAK": str(factor)},
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    text = report.read_text(errors="replace")
    assert done.returncode in (0, int(pytest.ExitCode.NO_TESTS_COLLECTED)), f"{file}\n{text[-20_000:]}"
    return sum(line.startswith("PASSED ") for line in text.splitlines())


def run_mixed_use(kind: str, hours: int) -> Callable[[Path, int], Counter[str]]:
    kinds = tuple(mixed_use.DISTURBANCES) if kind == MIXED else (kind,)

    def run(folder: Path, seed: int) -> Counter[str]:
        counts = mixed_use.run(folder, seed, kinds, hours)
        return counts + Counter({"simulated hours": hours})

    return run


EPISODES: dict[str, Callable[[Path, int], Counter[str]]] = {
    SCHEDULES: run_schedule,
    **{kind: run_mixed_use(kind, _HOURS_PER_EPISODE) for kind in mixed_use.DISTURBANCES},
    CRASH_POINTS: run_kills_at_points,
    RANDOM: run_random_tests,
    MIXED: run_mixed_use(MIXED, _DAY_HOURS),
    TEAM: team_use.run,
}


def run_episode(kind: str, seed: int) -> Outcome:
    """Run one episode in a folder of its own, which is kept if it fails."""
    folder = Path(tempfile.mkdtemp(prefix="hyp-soak-"))
    try:
        counts = EPISODES[kind](folder, seed)
    except (Impossible, pytest.skip.Exception) as error:
        return Outcome(kind, seed, impossible=str(error))
    except Exception:
        return Outcome(kind, seed, error=f"{traceback.format_exc()}\nfiles: {folder}")
    shutil.rmtree(folder, ignore_errors=True)
    return Outcome(kind, seed, dict(counts))


def run_lane(kinds: Sequence[str], seed: int, until: float, told: Path) -> None:
    """Run episodes of these kinds in turns until the time is over, and write each outcome as a line."""
    impossible: set[str] = set()
    number = 0
    while time.time() < until and len(impossible) < len(kinds):
        turn, place = divmod(number, len(kinds))
        kind = kinds[place]
        number += 1
        if kind in impossible:
            continue
        outcome = run_episode(kind, seed + turn)
        if outcome.impossible:
            impossible.add(kind)
        with open(told, "a") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")
        if kind != SCHEDULES or outcome.error:
            state = "FAILED" if outcome.error else outcome.impossible or "ok"
            print(f"{kind}, seed {outcome.seed}: {state} {outcome.counts or ''}\n{outcome.error}".strip(), flush=True)
