"""Converting a row of the original, or rejecting it with a reason, and counting both. Runs in Spark tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from hypaware.lake.build import Built, Reject
from hypaware.model.coerce import RowRejected, coerce_row
from hypaware.model.datasets import SEQ, Dataset, Row
from hypaware.takeover.adapt import Adapter
from hypaware.takeover.outcome import Tally


@dataclass
class PieceReport:
    """The result of reading one file."""

    mark: str
    tallies: dict[str, Tally] = field(default_factory=dict)
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

    def tally_for(self, source: str) -> Tally:
        return self.tallies.setdefault(source, Tally())


@dataclass(frozen=True)
class Terms:
    """Settings shared by all pieces of a takeover."""

    gateway_id: str
    kept_from: str | None = None
    """The first day that retention keeps; older rows are not imported."""


class Judge:
    """Converts the rows of one file."""

    def __init__(self, dataset: Dataset, terms: Terms, built: Built, report: PieceReport, origin: str) -> None:
        self._dataset, self._terms, self._built, self._report, self._origin = dataset, terms, built, report, origin
        self._adapter = Adapter(dataset, terms.gateway_id)

    def convert(self, original: Mapping[str, Any], position: int, *, pending: bool) -> Row | None:
        tally = self._report.tally_for(str(self._dataset.source_of(original)))
        tally.found += 1
        tally.pending += pending
        tally.without_sequence += not pending and original.get(SEQ) is None
        try:
            row = coerce_row(self._dataset, self._adapter.convert(original), self._terms.gateway_id)
        except (RowRejected, RecursionError) as reason:
            tally.rejected += 1
            self._reject(position, str(reason) or "nested too deeply", as_kept(original))
            return None
        if self._terms.kept_from is not None and row[self._dataset.time_column][:10] < self._terms.kept_from:
            tally.too_old += 1
            return None
        return row

    def reject_line(self, position: int, reason: str, line: bytes) -> None:
        self._report.not_rows += 1
        self._reject(position, reason, line)

    def _reject(self, position: int, reason: str, line: bytes) -> None:
        self._built.rejects.append(Reject(self._origin, position, reason, line))

    def withdraw(self, error: str, seqs: Iterable[int]) -> None:
        """Withdraw the rows of a file that cannot be read."""
        self._built.withdrawn += _ranges(seqs)
        self._built.rejects = [each for each in self._built.rejects if each.segment != self._origin]
        self._report.error = error
        self._report.tallies, self._report.not_rows = {}, 0

    def close(self) -> None:
        self._report.set_aside = dict(self._adapter.set_aside)
        self._built.reports.append(self._report)


def _ranges(seqs: Iterable[int]) -> list[range]:
    ranges: list[range] = []
    for seq in sorted(seqs):
        if ranges and ranges[-1].stop == seq:
            ranges[-1] = range(ranges[-1].start, seq + 1)
        else:
            ranges.append(range(seq, seq + 1))
    return ranges


def as_kept(row: Any) -> bytes:
    """Encode a rejected row as bytes; never fails."""
    try:
        return orjson.dumps(row, default=str, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return repr(row).encode("utf-8", "backslashreplace")
