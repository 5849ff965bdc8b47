"""`make soak`: disturb the program for a given time, with random numbers, and write down what was found.

    python -m tests.soak [--hours 1] [--only schedules,kills,…] [--seed N]

Two lanes run at the same time. One runs random schedules of the delivery model. The other runs, in turns, simulated
hours of use under each kind of disturbance (`tests.soak.mixed_use`), test files that kill at crash points, and test
files with random numbers, both with what `make test` leaves out of them. An episode that has begun is finished. Each
episode has a seed, which is printed; `--only KIND --seed N` runs that episode alone. The summary goes to `.soak.json`,
from which `make report` takes it.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path

from tests.soak.episodes import EPISODES, ROOT, SCHEDULES, run_episode, run_lane
from tests.soak.summary import Outcome, Summary

SUMMARY = ROOT / ".soak.json"


def read_outcomes(paths: Sequence[Path]) -> Iterator[Outcome]:
    for path in paths:
        for line in path.read_text().splitlines() if path.exists() else ():
            yield Outcome(**json.loads(line))


def soak(hours: float, kinds: Sequence[str], seed: int) -> Summary:
    """Run both lanes for the given time."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    summary = Summary(commit, datetime.now(UTC).isoformat(timespec="seconds"), hours, seed)
    until = time.time() + hours * 3600
    lanes = [lane for lane in ([SCHEDULES], [kind for kind in kinds if kind != SCHEDULES]) if set(lane) & set(kinds)]
    with tempfile.TemporaryDirectory(prefix="hyp-soak-outcomes-") as folder:
        paths = [Path(folder, str(number)) for number in range(len(lanes))]
        with ProcessPoolExecutor(len(lanes), mp_context=get_context("spawn")) as pool:
            running = [pool.submit(run_lane, lane, seed, until, path) for lane, path in zip(lanes, paths, strict=True)]
            for each in as_completed(running):
                each.result()
        for outcome in read_outcomes(paths):
            summary.add(outcome)
    return summary


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Disturbs the program for some time.")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--only", default=",".join(EPISODES), help=f"kinds, of {', '.join(EPISODES)}")
    parser.add_argument("--seed", type=int, help="run only the episode with this seed, of one kind")
    args = parser.parse_args()
    kinds = args.only.split(",")
    if unknown := set(kinds) - EPISODES.keys():
        parser.error(f"unknown kind {', '.join(sorted(unknown))}; choose from {', '.join(EPISODES)}")
    if args.seed is not None:
        outcome = run_episode(kinds[0], args.seed)
        print(outcome.error or outcome.impossible or outcome.counts)
        return int(bool(outcome.error))
    seed = random.SystemRandom().randrange(10**9)
    print(f"soaking for {args.hours} hours, first seed {seed}", flush=True)
    summary = soak(args.hours, kinds, seed)
    SUMMARY.write_text(json.dumps(asdict(summary), indent=2) + "\n")
    print(json.dumps({**asdict(summary), "failures": [each["replay"] for each in summary.failures]}, indent=2))
    return int(bool(summary.failures))


if __name__ == "__main__":
    sys.exit(main())
