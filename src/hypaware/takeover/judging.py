"""Making a row of the original ours, or saying why not, and counting both. Runs in Spark's tasks."""

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
    """What reading one file came to."""

    mark: str
    tallies: dict[str, Tally] = field(default_factory=dict)
    """By the source of the rows."""
    set_aside: dict[str, int] = field(default_factory=dict)
    """Columns that ours does not have: in how many rows each held something."""
    consumed: int = 0
    taken_hash: str = ""
    """Of the bytes of a spool file before `consumed`."""
    torn_bytes: int = 0
    """Of a last line that was never finished: nobody was told that its rows are safe."""
    not_rows: int = 0
    """Lines of a spool, or things in them, that hold no row; they are kept as they are."""
    error: str | None = None

    def of(self, source: str) -> Tally:
        return self.tallies.setdefault(source, Tally())


@dataclass(frozen=True)
class Terms:
    """What all pieces of a take-over share."""

    gateway_id: str
    kept_from: str | None = None
    """The first day that retention has kept: what is older does not come back."""


class Judge:
    """Of the rows of one file."""

    def __init__(self, dataset: Dataset, terms: Terms, built: Built, report: PieceReport, origin: str) -> None:
        self._dataset, self._terms, self._built, self._report, self._origin = dataset, terms, built, report, origin
        self._adapter = Adapter(dataset, terms.gateway_id)

    def judged(self, theirs: Mapping[str, Any], place: int, *, pending: bool) -> Row | None:
        tally = self._report.of(str(self._dataset.source_of(theirs)))
        tally.found += 1
        tally.pending += pending
        tally.without_sequence += not pending and theirs.get(SEQ) is None
        try:
            row = coerce_row(self._dataset, self._adapter.adapted(theirs), self._terms.gateway_id)
        except (RowRejected, RecursionError) as reason:
            tally.rejected += 1
            self._refuse(place, str(reason) or "nested too deeply", as_kept(theirs))
            return None
        if self._terms.kept_from is not None and row[self._dataset.time_column][:10] < self._terms.kept_from:
            tally.too_old += 1
            return None
        return row

    def no_row(self, place: int, reason: str, kept: bytes) -> None:
        self._report.not_rows += 1
        self._refuse(place, reason, kept)

    def _refuse(self, place: int, reason: str, kept: bytes) -> None:
        self._built.rejects.append(Reject(self._origin, place, reason, kept))

    def give_up(self, error: str, seqs: Iterable[int]) -> None:
        """What the file gave is taken back."""
        self._built.withdrawn += _runs(seqs)
        self._built.rejects = [each for each in self._built.rejects if each.segment != self._origin]
        self._report.error = error
        self._report.tallies, self._report.not_rows = {}, 0

    def close(self) -> None:
        self._report.set_aside = dict(self._adapter.set_aside)
        self._built.notes.append(self._report)


def _runs(seqs: Iterable[int]) -> list[range]:
    found: list[range] = []
    for seq in sorted(seqs):
        if found and found[-1].stop == seq:
            found[-1] = range(found[-1].start, seq + 1)
        else:
            found.append(range(seq, seq + 1))
    return found


def as_kept(row: Any) -> bytes:
    """A refused row as bytes, whatever is in it."""
    try:
        return orjson.dumps(row, default=str, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return repr(row).encode("utf-8", "backslashreplace")
