"""`make report`: measure everything on this machine and write docs/report.md, with tables and charts.

    python -m bench.report [--only import,peers] [--scale 0.2] [--sizes 100000,1000000] [--output FILE]

The report names the machine, the versions, the commit and the load, so that anyone can make it again and compare. A
section that fails is reported with its error, and the others are measured. Charts are Mermaid, which GitHub and most
Markdown viewers draw.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

from bench import growth, peers
from bench.measure import HYP, ROOT, Measured
from bench.run import SECTIONS, Options, add_arguments, measure_section

_TABLE_HEAD = "| work | target | measured | |\n|---|---|---|---|"


@dataclass(frozen=True)
class Chart:
    """A chart in Mermaid: categories on the x axis, and one series of values for each name."""

    title: str
    unit: str
    categories: Sequence[str]
    series: Sequence[tuple[str, Sequence[float]]]
    kind: str = "bar"

    def lines(self) -> list[str]:
        highest = max((value for _, values in self.series for value in values), default=0.0)
        categories = ", ".join(json.dumps(each, ensure_ascii=False) for each in self.categories)
        return [
            "```mermaid",
            "xychart-beta",
            f"    title {json.dumps(self.title, ensure_ascii=False)}",
            f"    x-axis [{categories}]",
            f'    y-axis "{self.unit}" 0 --> {max(highest * 1.1, 0.01):.2f}',
            *(f"    {self.kind} [{', '.join(f'{value:.2f}' for value in values)}]" for _, values in self.series),
            "```",
            *(["", f"In this order: {', '.join(name for name, _ in self.series)}."] if len(self.series) > 1 else []),
        ]


def describe_machine() -> list[str]:
    """Return what the figures depend on, as a Markdown list."""
    versions = json.loads(subprocess.run([HYP, "version", "--json"], capture_output=True, check=True).stdout)
    commit = _git("rev-parse", "--short=12", "HEAD")
    changed = " with uncommitted changes" if _git("status", "--porcelain", "--untracked-files=no") else ""
    memory = psutil.virtual_memory().total / 2**30
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    return [
        f"- commit {commit}{changed}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        f"- {platform.system()} {platform.release()}, {platform.machine()}, {os.cpu_count()} cores, {memory:.0f} GiB",
        f"- load at the start, over 1, 5 and 15 minutes: {load}",
        "- " + ", ".join(f"{name} {version}" for name, version in versions.items() if version and name != "platform"),
    ]


def _git(*args: str) -> str:
    found = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip() or ("unknown" if found.returncode else "")


def report_section(name: str, options: Options) -> Iterator[str]:
    yield from ("", f"## {name.capitalize()}", "", _TABLE_HEAD)
    yield from _lines_or_error(measure_section(name, options))


def _lines_or_error(measured: Iterator[Measured]) -> Iterator[str]:
    try:
        for found in measured:
            yield found.line()
    except (SystemExit, OSError, subprocess.SubprocessError) as error:
        first, *_ = str(error).splitlines() or [type(error).__name__]
        yield f"| this section failed | – | {first.replace('|', '/')} | |"


def report_peers(options: Options, ccusage: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="hyp-peers-") as folder:
        programs, missing = peers.compare(options.folder or Path(folder), options.scale, ccusage)
    yield from ("", "## Peers", "", "The least of nine runs, in turns, over the same history.", "")
    yield f"| work | {' | '.join(program.name for program in programs)} |"
    yield "|---" * (len(programs) + 1) + "|"
    for work in peers.WORK:
        cells = (f"{each.times[work] * 1e3:.0f} ms" if work in each.times else "–" for each in programs)
        yield f"| {work} | {' | '.join(cells)} |"
    for reason in missing:
        yield from ("", f"Not compared: {reason}.")
    for work in peers.WORK:
        # Mermaid draws several series of bars on top of each other.
        able = [each for each in programs if work in each.times]
        bars = [each.times[work] * 1e3 for each in able]
        yield from ("", *Chart(work.capitalize(), "ms", [each.name for each in able], [("", bars)]).lines())


def report_growth(sizes: Sequence[int]) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="hyp-growth-") as folder:
        found = growth.measure_growth(Path(folder), sizes)
    yield from ("", "## Growth", "", *growth.growth_table(found))
    first = found[sizes[0]]
    series = [(work, [times[work] / first[work] for times in found.values()]) for work in first]
    labels = [f"{size:,}" for size in sizes]
    yield from ("", *Chart("Time against the smallest lake, by rows", "×", labels, series, kind="line").lines())


def report_reliability(summary: Path) -> Iterator[str]:
    """Report what the last `make soak` did and found."""
    yield from ("", "## Reliability", "")
    if not summary.exists():
        yield "`make soak` was not run on this machine."
        return
    found = json.loads(summary.read_bytes())
    yield f"`make soak` ran for {found['hours']:g} hours on commit {found['commit']}, from seed {found['seed']}."
    yield from ("", "| what | how often |", "|---|---|")
    yield from (f"| episodes: {kind} | {times:,} |" for kind, times in sorted(found["episodes"].items()))
    yield from (f"| {what} | {times:,} |" for what, times in sorted(found["counts"].items()))
    yield from ("", f"Failures: {len(found['failures']) or 'none'}.")
    yield from (f"- `{each['replay']}`" for each in found["failures"])
    yield from (f"- {kind} cannot be tried here: {why}" for kind, why in found["impossible"].items())


def main() -> None:
    names = (*SECTIONS, "peers", "growth", "reliability")
    parser = argparse.ArgumentParser(description="Measures everything and writes a report.")
    add_arguments(parser)
    parser.add_argument("--only", default=",".join(names), help=f"sections, of {', '.join(names)}")
    parser.add_argument("--sizes", default=",".join(map(str, growth.SIZES)), help="rows of the growing lake")
    parser.add_argument("--ccusage", default="", metavar="VERSION", help="the version of ccusage; default: the newest")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "report.md")
    args = parser.parse_args()
    chosen = args.only.split(",")
    if unknown := set(chosen) - set(names):
        parser.error(f"unknown section {', '.join(sorted(unknown))}; choose from {', '.join(names)}")
    options = Options(args.rows, args.scale, args.large, args.folder)
    lines = [
        "# Report",
        "",
        "Measured by `make report` on one machine. [Performance](performance.md) explains the targets and what helped.",
        "",
        *describe_machine(),
    ]
    for name in chosen:
        print(f"measuring {name}", file=sys.stderr, flush=True)
        if name == "peers":
            lines += report_peers(options, args.ccusage)
        elif name == "growth":
            lines += report_growth([int(size) for size in args.sizes.split(",")])
        elif name == "reliability":
            lines += report_reliability(ROOT / ".soak.json")
        else:
            lines += report_section(name, options)
        # After each section, so that an interrupted report keeps what it has.
        args.output.write_text("\n".join(lines) + "\n")
    print(args.output)


if __name__ == "__main__":
    main()
