"""Measure `hyp search` on the index of a home: `python -m bench.search HOME [--repeat 40]`.

The words come from the newest month of the index: the twenty most frequent ones, ordinary ones and rare ones, alone, in
pairs, as phrases and as prefixes. The index is not changed. The CPU time counts on a machine that does other work too.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.measure import HYP, Commands, Measured
from hypaware.home import Home
from hypaware.index.search import search
from hypaware.index.store import Index, open_index

_FREQUENT, _ORDINARY, _RARE = 20, 1500, 20_000
Words = tuple[list[str], list[str], list[str]]


def measure(home: Path, repeat: int) -> Iterator[Measured]:
    with open_index(Home(home)) as index:
        (rows,) = index.connection.execute("SELECT count(*) FROM parts").fetchone()
        chance = random.Random(5)
        words = _read_words(index)
        every: list[float] = []
        for kind, make in _kinds(words, chance).items():
            spent = [_time(index, make()) for _ in range(repeat)]
            every += [cpu for _, cpu in spent]
            yield Measured(f"search of {kind}, {rows:,} rows", "–", _describe(spent))
        slowest = _percentile(every, 0.95)
        yield Measured("search of any of these, p95 (CPU)", "≤ 100 ms", f"{slowest * 1e3:.0f} ms", slowest <= 0.1)
        frequent, ordinary, _ = words
        for name, options in {"role": {"role": "user"}, "tool": {"tool": "Bash"}}.items():
            chosen = [chance.choice(frequent + ordinary) for _ in range(repeat)]
            yield Measured(
                f"search with a filter by {name}", "–", _describe([_time(index, word, **options) for word in chosen])
            )
    commands = Commands(home)
    begun = []
    for word in chance.sample(ordinary, 9):
        start = time.perf_counter()
        commands.run([str(HYP), "search", word, "--json"])
        begun.append(time.perf_counter() - start)
    taken = statistics.median(begun)
    yield Measured("hyp search as a command", "≤ 0.4 s", f"{taken:.2f} s", taken <= 0.4)


def _read_words(index: Index) -> Words:
    """Return frequent, ordinary and rare words of the newest month."""
    connection = index.connection
    connection.execute("PRAGMA query_only=OFF")
    newest = index.text_tables()[0]
    connection.execute(f"CREATE VIRTUAL TABLE temp.vocabulary USING fts5vocab(main, '{newest}', row)")
    # Words of the text only, not those of roles, types and tools, which begin with a private character.
    query = "SELECT term FROM vocabulary WHERE term < char(0xE000) ORDER BY doc DESC LIMIT ?"
    by_count = [term for (term,) in connection.execute(query, (_RARE,))]
    frequent, ordinary = by_count[:_FREQUENT], by_count[200:_ORDINARY]
    return frequent, ordinary or by_count, by_count[len(by_count) // 2 :]


def _kinds(words: Words, chance: random.Random) -> dict[str, Callable[[], str]]:
    frequent, ordinary, rare = words

    def one_of(some: list[str]) -> str:
        return chance.choice(some)

    return {
        "a frequent word": lambda: one_of(frequent),
        "an ordinary word": lambda: one_of(ordinary),
        "a rare word": lambda: one_of(rare),
        "two ordinary words": lambda: f"{one_of(ordinary)} {one_of(ordinary)}",
        "a frequent and a rare word": lambda: f"{one_of(frequent)} {one_of(rare)}",
        "two frequent words": lambda: f"{one_of(frequent)} {one_of(frequent)}",
        "a phrase of ordinary words": lambda: f'"{one_of(ordinary)} {one_of(ordinary)}"',
        "a phrase of frequent words": lambda: f'"{one_of(frequent)} {one_of(frequent)}"',
        "a prefix of three letters": lambda: f"{one_of(ordinary)[:3]}*",
        "a prefix of two letters": lambda: f"{one_of(ordinary)[:2]}*",
    }


def _time(index: Index, words: str, **options: Any) -> tuple[float, float]:
    """Return the seconds and the CPU seconds of a search."""
    wall, cpu = time.perf_counter(), time.process_time()
    search(index, words, **options)
    return time.perf_counter() - wall, time.process_time() - cpu


def _describe(spent: list[tuple[float, float]]) -> str:
    walls, cpus = ([each[at] for each in spent] for at in (0, 1))
    return (
        f"p50 {_percentile(walls, 0.5) * 1e3:.0f} ms, p95 {_percentile(walls, 0.95) * 1e3:.0f} ms "
        f"(CPU {_percentile(cpus, 0.5) * 1e3:.0f} and {_percentile(cpus, 0.95) * 1e3:.0f} ms)"
    )


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures hyp search on the index of a home.")
    parser.add_argument("home", type=Path)
    parser.add_argument("--repeat", type=int, default=40, help="searches of each kind")
    args = parser.parse_args()
    print("| work | target | measured | |\n|---|---|---|---|", flush=True)
    for found in measure(args.home, args.repeat):
        print(found.line(), flush=True)


if __name__ == "__main__":
    main()
