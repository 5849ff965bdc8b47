"""What waits in the spool, and what was refused on its way."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hypaware.home import Home
from hypaware.spool import segments
from hypaware.status import memory, words
from hypaware.status.diagnostic import Diagnostic, Found, info, warning
from hypaware.status.memory import Memory
from hypaware.status.view import View

# Where the daemon runs, it commits long before this.
_LONG = timedelta(hours=1)
_NEWS = timedelta(days=7)


@dataclass(frozen=True)
class Waiting:
    segments: int
    rows: int


@dataclass(frozen=True)
class Spool:
    segments: int = 0
    rows: int = 0
    bytes: int = 0
    oldest_at: str | None = None
    rejected_rows: int = 0
    datasets: list[dict[str, Any]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def look(view: View) -> Found[Spool]:
    datasets = segments.datasets_with_spool(view.home)
    each = [_of_dataset(view.home, view.memory, dataset) for dataset in datasets]
    refused = {dataset: found for dataset in datasets if (found := _refused(view.home, dataset))}
    facts = Spool(
        segments=sum(one["segments"] for one in each),
        rows=sum(one["rows"] for one in each),
        bytes=sum(one["bytes"] for one in each),
        oldest_at=min((one["oldest_at"] for one in each if one["oldest_at"]), default=None),
        rejected_rows=sum(rows for rows, *_ in refused.values()),
        datasets=[one for one in each if one["segments"]],
    )
    said = [*_of_waiting(view, facts), *_of_flushes(view), *_of_refused(view, refused)]
    return Found(facts, tuple(said))


def waiting(home: Home) -> Waiting:
    """The same without the rest of a view, for whoever asks for no more."""
    known = memory.recall(home)
    each = [_of_dataset(home, known, dataset) for dataset in segments.datasets_with_spool(home)]
    return Waiting(sum(one["segments"] for one in each), sum(one["rows"] for one in each))


def _of_dataset(home: Home, known: Memory, dataset: str) -> dict[str, Any]:
    """One listing, for producers and flushes are at work: what is sealed meanwhile counts in its new place only.

    Segments that the lake has already do not wait; only their files are still there.
    """
    where = segments.folder(home, dataset)
    active = {path.stem: _measured(path) for path in segments.active_files(where)}
    sealed = segments.sealed_segments(where)
    done = memory.committed_segments(home, dataset) if sealed and known.high_water else set()
    names = {segment.name.partition(".")[0] for segment in sealed}
    waiting = {segment.name: (segment.rows, segment.bytes) for segment in sealed if segment.name not in done}
    # Sealed within a second or so, unless their producer died: then these rows wait as well.
    waiting |= {name: found for name, found in active.items() if found[1] and name not in names}
    born = min(waiting, default="").partition("-")[0]
    oldest = datetime.fromtimestamp(int(born) / 1000, UTC) if born.isdecimal() else None
    return {
        "dataset": dataset,
        "segments": len(waiting),
        "rows": sum(rows for rows, _ in waiting.values()),
        "bytes": sum(size for _, size in waiting.values()),
        "oldest_at": oldest.isoformat(timespec="seconds").replace("+00:00", "Z") if oldest else None,
    }


def _measured(path: Path) -> tuple[int, int]:
    """Rows and bytes of an active file; nothing where it has been sealed meanwhile."""
    try:
        return segments.count_lines(path), path.stat().st_size
    except FileNotFoundError:
        return 0, 0


def _of_waiting(view: View, facts: Spool) -> Iterator[Diagnostic]:
    oldest = words.moment(facts.oldest_at)
    if oldest is None or view.now - oldest < _LONG:
        return
    rows, when = words.count(facts.rows, "row"), words.ago(facts.oldest_at, view.now)
    yield warning("spool_waiting", f"{rows} in the spool, the oldest from {when}, were not committed", "hyp flush")


def _of_flushes(view: View) -> Iterator[Diagnostic]:
    for each in view.memory.failing:
        what, times = words.count(each.segments, "segment"), words.count(each.attempts, "time")
        yield warning(
            "segments_failing", f"{what} of {each.dataset} could not be committed, tried up to {times}", "hyp flush"
        )
    for left in view.memory.unfinished:
        when = words.ago(left.reserved_at, view.now)
        since = words.moment(left.reserved_at)
        say = warning if since is None or view.now - since > _LONG else info
        yield say(
            "flush_unfinished",
            f"a commit of {left.dataset}, begun {when}, is under way or was broken off; the next one settles it",
            "hyp flush",
        )


def _refused(home: Home, dataset: str) -> tuple[int, Path, datetime] | None:
    """How many rows, the newest file of them, and when that was written."""
    files = [(path.stat().st_mtime, path) for path in segments.folder(home, dataset).rejected.glob("*.jsonl")]
    if not files:
        return None
    at, newest = max(files)
    return sum(segments.count_lines(path) for _, path in files), newest, datetime.fromtimestamp(at, UTC)


def _of_refused(view: View, refused: dict[str, tuple[int, Path, datetime]]) -> Iterator[Diagnostic]:
    for dataset, (rows, path, at) in refused.items():
        say = warning if view.now - at < _NEWS else info
        when = words.ago(at.isoformat(), view.now)
        yield say(
            "rows_refused",
            f"{words.count(rows, 'row')} of {dataset} could not be stored, the last {when}; "
            f"{path.parent} has each with its reason",
            f"head {shlex.quote(str(path))}",
        )
