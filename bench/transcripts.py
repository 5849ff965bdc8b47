"""Generate a Claude Code history: `python -m bench.transcripts FOLDER [--scale 0.1] [--seed 1]`.

    FOLDER/projects/<project>/<session>.jsonl
    FOLDER/expected.json       what an import of it must find

The lines have the format of the real client: one content block a line, the usage of an API message repeated on
each of its lines (growing in those of the older version, where the last one counts), tool results with
`toolUseResult`. The first line of a session makes no row, every other line makes one. The same arguments give the same
bytes; the files' times are those of their last lines, long ago.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from bench.claude_lines import Conversation, Style
from bench.prose import Prose

BYTES, LINES, SESSIONS = 500_000_000, 376_036, 1_092
DAYS, PROJECTS = 180, 40
_END = datetime(2025, 12, 31)
_NEW_SHAPE_SINCE = _END - timedelta(days=60)
_FEWEST_LINES = 4
# Session sizes: most are small, a few are larger than a week of small ones.
_SPREAD, _LARGEST = 1.5, 120.0


@dataclass(frozen=True)
class History:
    """The generated history and the rows that an import of it must find."""

    bytes: int
    lines: int
    sessions: int
    rows: int
    responses: int
    tokens: dict[str, int]
    """By the names that `attributes.usage` has for them."""
    parts: dict[str, int]
    """By part type."""


@dataclass
class _Totals:
    bytes: int = 0
    lines: int = 0
    responses: int = 0
    tokens: Counter[str] = field(default_factory=Counter)
    parts: Counter[str] = field(default_factory=Counter)


def generate(
    folder: Path, *, bytes: int = BYTES, lines: int = LINES, sessions: int = SESSIONS, seed: int = 1
) -> History:
    """Write a history of exactly so many lines and sessions and about so many bytes."""
    rng = Random(seed)
    prose = Prose(rng)
    totals = _Totals()
    cwds = [f"/home/dev/{name}" for name in rng.sample(prose.words, PROJECTS)]
    begins = _beginnings(rng, sessions)
    for begin, count in zip(begins, _line_counts(rng, lines, sessions), strict=True):
        style = Style.NEW if begin >= _NEW_SHAPE_SINCE else Style.OLD
        talk = Conversation(rng, prose, style, cwd=rng.choice(cwds), begin=begin)
        while len(talk.lines) < count:
            wanted = (bytes - totals.bytes - talk.bytes) / (lines - totals.lines - len(talk.lines))
            talk.turn(count - len(talk.lines), wanted)
        _write(folder, talk)
        totals.bytes += talk.bytes
        totals.lines += count
        totals.responses += talk.responses
        totals.tokens.update(talk.tokens)
        totals.parts.update(talk.parts)
    made = History(
        bytes=totals.bytes,
        lines=totals.lines,
        sessions=sessions,
        rows=totals.parts.total(),
        responses=totals.responses,
        tokens=dict(totals.tokens),
        parts=dict(totals.parts),
    )
    (folder / "expected.json").write_text(json.dumps(asdict(made), indent=2) + "\n")
    return made


def load(folder: Path) -> History | None:
    """Load the description that `generate` left in the folder, or None."""
    try:
        return History(**json.loads((folder / "expected.json").read_text()))
    except FileNotFoundError:
        return None


def files(folder: Path) -> list[Path]:
    return sorted((folder / "projects").rglob("*.jsonl"))


def _write(folder: Path, talk: Conversation) -> None:
    path = folder / "projects" / talk.cwd.replace("/", "-") / f"{talk.session}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(talk.lines))
    at = talk.now.replace(tzinfo=UTC).timestamp()
    os.utime(path, (at, at))


def _beginnings(rng: Random, sessions: int) -> list[datetime]:
    """Draw session starts: several on each working day, few at weekends."""
    days = [_END - timedelta(days=before) for before in range(DAYS, 0, -1)]
    drawn = rng.choices(days, [0.2 if day.weekday() >= 5 else 1.0 for day in days], k=sessions)
    return sorted(day + timedelta(hours=7, milliseconds=rng.randrange(12 * 3_600_000)) for day in drawn)


def _line_counts(rng: Random, lines: int, sessions: int) -> Sequence[int]:
    spare = lines - _FEWEST_LINES * sessions
    if spare < 0:
        raise ValueError(f"{sessions} sessions need {_FEWEST_LINES * sessions} lines at least")
    weights = [min(rng.lognormvariate(0, _SPREAD), _LARGEST) for _ in range(sessions)]
    share = spare / sum(weights)
    counts = [_FEWEST_LINES + int(weight * share) for weight in weights]
    counts[counts.index(max(counts))] += lines - sum(counts)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a Claude Code history and print a summary.")
    parser.add_argument("folder", type=Path, help="as CLAUDE_CONFIG_DIR")
    parser.add_argument("--scale", type=float, default=1.0, help="1 is 500 MB in 376,036 lines")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    made = generate(args.folder, seed=args.seed, **scaled(args.scale))
    print(json.dumps(asdict(made), indent=2))


def scaled(scale: float) -> dict[str, int]:
    """Return the arguments of `generate` for a scale."""
    sessions = max(1, round(SESSIONS * scale))
    return {
        "bytes": round(BYTES * scale),
        "lines": max(_FEWEST_LINES * sessions, round(LINES * scale)),
        "sessions": sessions,
    }


if __name__ == "__main__":
    main()
