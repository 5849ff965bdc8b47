"""The spool: rows that are not committed yet, and rejects."""

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

# A running daemon commits rows long before this.
_OVERDUE = timedelta(hours=1)
_RECENT = timedelta(days=7)


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
    per_dataset = [_of_dataset(view.home, view.state, dataset) for dataset in datasets]
    rejects = {dataset: found for dataset in datasets if (found := _find_rejects(view.home, dataset))}
    facts = Spool(
        segments=sum(each["segments"] for each in per_dataset),
        rows=sum(each["rows"] for each in per_dataset),
        bytes=sum(each["bytes"] for each in per_dataset),
        oldest_at=min((each["oldest_at"] for each in per_dataset if each["oldest_at"]), default=None),
        rejected_rows=sum(rows for rows, *_ in rejects.values()),
        datasets=[each for each in per_dataset if each["segments"]],
    )
    diagnostics = [
        *_overdue_diagnostics(view, facts),
        *_flush_diagnostics(view),
        *_reject_diagnostics(view, rejects),
    ]
    return Found(facts, tuple(diagnostics))


def waiting(home: Home) -> Waiting:
    """Count the rows in the spool, without the rest of a snapshot."""
    state = memory.recall(home)
    per_dataset = [_of_dataset(home, state, dataset) for dataset in segments.datasets_with_spool(home)]
    return Waiting(sum(each["segments"] for each in per_dataset), sum(each["rows"] for each in per_dataset))


def _of_dataset(home: Home, state: Memory, dataset: str) -> dict[str, Any]:
    """Count the rows of one dataset that are not in the lake yet.

    Producers and flushes run at the same time, so active files are listed before sealed ones: a segment that is sealed
    in between counts once, as sealed. Committed segments whose files still exist do not count.
    """
    folder = segments.folder(home, dataset)
    active = {path.stem: _measured(path) for path in segments.active_files(folder)}
    sealed = segments.sealed_segments(folder)
    committed = memory.committed_segments(home, dataset) if sealed and state.high_water else set()
    names = {segment.name.partition(".")[0] for segment in sealed}
    spooled = {segment.name: (segment.rows, segment.bytes) for segment in sealed if segment.name not in committed}
    # Active files are sealed within about a second, unless their producer died.
    spooled |= {name: measured for name, measured in active.items() if measured[1] and name not in names}
    created = min(spooled, default="").partition("-")[0]
    oldest = datetime.fromtimestamp(int(created) / 1000, UTC) if created.isdecimal() else None
    return {
        "dataset": dataset,
        "segments": len(spooled),
        "rows": sum(rows for rows, _ in spooled.values()),
        "bytes": sum(size for _, size in spooled.values()),
        "oldest_at": oldest.isoformat(timespec="seconds").replace("+00:00", "Z") if oldest else None,
    }


def _measured(path: Path) -> tuple[int, int]:
    """Return the rows and bytes of an active file, or zeros if it has been sealed in the meantime."""
    try:
        return segments.count_lines(path), path.stat().st_size
    except FileNotFoundError:
        return 0, 0


def _overdue_diagnostics(view: View, facts: Spool) -> Iterator[Diagnostic]:
    oldest = words.moment(facts.oldest_at)
    if oldest is None or view.now - oldest < _OVERDUE:
        return
    rows, when = words.count(facts.rows, "row"), words.ago(facts.oldest_at, view.now)
    yield warning("spool_waiting", f"{rows} in the spool not committed yet, the oldest from {when}", "hyp flush")


def _flush_diagnostics(view: View) -> Iterator[Diagnostic]:
    for each in view.state.failing:
        count, times = words.count(each.segments, "segment"), words.count(each.attempts, "attempt")
        yield warning(
            "segments_failing", f"{count} of {each.dataset} could not be committed after {times}", "hyp flush"
        )
    for flush in view.state.unfinished:
        when = words.ago(flush.reserved_at, view.now)
        since = words.moment(flush.reserved_at)
        report = warning if since is None or view.now - since > _OVERDUE else info
        yield report(
            "flush_unfinished",
            f"a flush of {flush.dataset}, started {when}, is running or was interrupted; the next flush completes it",
            "hyp flush",
        )


def _find_rejects(home: Home, dataset: str) -> tuple[int, Path, datetime] | None:
    """Return the number of rejects, the newest file of them, and when it was written."""
    files = [(path.stat().st_mtime, path) for path in segments.folder(home, dataset).rejected.glob("*.jsonl")]
    if not files:
        return None
    at, newest = max(files)
    return sum(segments.count_lines(path) for _, path in files), newest, datetime.fromtimestamp(at, UTC)


def _reject_diagnostics(view: View, rejects: dict[str, tuple[int, Path, datetime]]) -> Iterator[Diagnostic]:
    for dataset, (rows, path, at) in rejects.items():
        report = warning if view.now - at < _RECENT else info
        when = words.ago(at.isoformat(), view.now)
        yield report(
            "rows_refused",
            f"{words.count(rows, 'row')} of {dataset} could not be stored, the last {when}; see the reasons in "
            f"{path.parent}",
            f"head {shlex.quote(str(path))}",
        )
