"""The report of a takeover: rows by dataset and source, watermarks, and data that was not imported."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from hypaware.takeover.cache import CacheSurvey


@dataclass
class SourceTally:
    """Counts of the rows of one source."""

    found: int = 0
    rejected: int = 0
    without_sequence: int = 0
    pending: int = 0
    """How many of the rows found were in a spool."""
    too_old: int = 0
    """Older than retention keeps."""
    purged: int = 0
    """Purged from this home before; they are not imported again."""
    written: int = 0

    def add(self, other: SourceTally) -> None:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)

    @property
    def duplicate(self) -> int:
        return self.found - self.written - self.rejected - self.too_old - self.purged


@dataclass
class PieceReport:
    """The result of reading one file."""

    mark: str
    tallies: dict[str, SourceTally] = field(default_factory=dict)
    """By the source of the rows."""
    set_aside: dict[str, int] = field(default_factory=dict)
    """Unknown columns: the number of rows with a value in each."""
    consumed: int = 0
    taken_hash: str = ""
    """Hash of the bytes of a spool file before `consumed`."""
    torn_bytes: int = 0
    """Bytes of an unfinished last line, whose rows were never acknowledged."""
    not_rows: int = 0
    """Lines of a spool, or values in them, that hold no row; they are kept as rejects."""
    error: str | None = None


@dataclass
class DatasetTakeoverReport:
    dataset: str
    tallies: dict[str, SourceTally] = field(default_factory=dict)
    rows_taken_before: int = 0
    """How many of the rows found are in data files that an earlier takeover imported; these were not read again."""
    not_rows: int = 0
    """Lines of a spool that hold no row; kept with the reason, like rejected rows."""
    torn_bytes: int = 0
    set_aside: dict[str, int] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    """Files that could not be read and were skipped on request."""
    seq_after: int | None = None
    seq_last: int | None = None
    flush_id: str | None = None

    @classmethod
    def start(cls, survey: CacheSurvey) -> DatasetTakeoverReport:
        """Start the report: rows in files that an earlier takeover imported count as found and present."""
        outcome = cls(survey.dataset)
        for each in survey.files:
            if each.taken and each.sources:
                tally = outcome.tallies.setdefault(min(each.sources), SourceTally())
                tally.found += each.data_file.rows
                tally.without_sequence += each.seqs.null_count
                outcome.rows_taken_before += each.data_file.rows
        return outcome

    def add(self, reports: Iterable[PieceReport]) -> None:
        for report in reports:
            for source, tally in report.tallies.items():
                self.tallies.setdefault(source, SourceTally()).add(tally)
            for name, rows in report.set_aside.items():
                self.set_aside[name] = self.set_aside.get(name, 0) + rows
            self.not_rows += report.not_rows
            self.torn_bytes += report.torn_bytes
            if report.error is not None:
                self.unreadable.append(report.error)

    def as_json(self) -> dict[str, Any]:
        return {
            "dataset": self.dataset,
            "sources": [
                {
                    "source": source,
                    "rows_found": tally.found,
                    "rows_written": tally.written,
                    "rows_duplicate": tally.duplicate,
                    "rows_rejected": tally.rejected,
                    "rows_too_old": tally.too_old,
                    "rows_purged": tally.purged,
                    "without_sequence": tally.without_sequence,
                    "pending_spool": tally.pending,
                }
                for source, tally in sorted(self.tallies.items())
            ],
            "rows_taken_before": self.rows_taken_before,
            "not_rows": self.not_rows,
            "torn_bytes": self.torn_bytes,
            "columns_set_aside": dict(sorted(self.set_aside.items())),
            "seq_after": self.seq_after,
            "seq_last": self.seq_last,
            "flush_id": self.flush_id,
        }


@dataclass
class WatermarkReport:
    """One watermark of the original, and its meaning here."""

    sink: str
    """The original's name of the sink."""
    dataset: str
    partition: str
    source: str | None = None
    old: int | None = None
    to: str | None = None
    """Our sink that continues it."""
    honoured: bool = False
    new: int | None = None
    why: str = ""


@dataclass
class TakeoverReport:
    dir: str
    dry_run: bool
    datasets: list[DatasetTakeoverReport] = field(default_factory=list)
    watermarks: list[WatermarkReport] = field(default_factory=list)
    not_taken: list[dict[str, Any]] = field(default_factory=list)
    """`{what, why, rows?}`"""

    def add_not_taken(self, what: str, why: str, rows: int | None = None) -> None:
        self.not_taken.append({"what": what, "why": why, **({} if rows is None else {"rows": rows})})

    def as_json(self) -> dict[str, Any]:
        return {
            "dir": self.dir,
            "dry_run": self.dry_run,
            "datasets": [each.as_json() for each in self.datasets],
            "watermarks": [asdict(each) for each in self.watermarks],
            "not_taken": self.not_taken,
        }
