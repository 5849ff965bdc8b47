"""A data file, or a spool file, of the original as a piece of a build. Runs in Spark's tasks; only reads.

Each time it is asked, a piece gives the same rows with the same sequences: a data file never changes, and of a spool
file exactly the pinned bytes are read. Trouble with one file is told, and takes back the rows that it gave; whoever
made the piece decides whether the take-over goes on without it.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hypaware.lake.build import Built
from hypaware.model import canonical
from hypaware.model.datasets import Dataset, Row
from hypaware.regular import open_regular
from hypaware.takeover.cache import hash_of
from hypaware.takeover.judging import Judge, PieceReport, Terms, as_kept
from hypaware.takeover.plain_rows import plain_rows

_BATCH_ROWS = 512
_ENVELOPE_VERSION = 1


@dataclass(frozen=True)
class TablePiece:
    path: Path
    mark: str
    columns: Mapping[str, str]
    """Its columns, and what they are called now."""
    deleted: frozenset[int]
    seqs: bytes
    """The sequences of its live rows, in its own order, as 64 bits each."""
    bytes: int
    terms: Terms

    @property
    def first_seq(self) -> int:
        return min(array("q", self.seqs), default=0)

    @property
    def suspects(self) -> tuple[str, ...]:
        return ()

    def rows(self, dataset: Dataset, built: Built) -> Iterator[tuple[int, Row]]:
        report = PieceReport(self.mark)
        judge = Judge(dataset, self.terms, built, report, str(self.path))
        seqs = array("q", self.seqs)
        try:
            for place, (seq, theirs) in enumerate(zip(seqs, self._read(), strict=True)):
                if (row := judge.judged(theirs, place, pending=False)) is not None:
                    yield seq, row
        except (OSError, ValueError, pa.ArrowException) as error:
            judge.give_up(f"{self.path} cannot be read: {error}", seqs)
        judge.close()

    def _read(self) -> Iterator[dict[str, Any]]:
        with pq.ParquetFile(self.path) as held:
            place = 0
            for batch in held.iter_batches(_BATCH_ROWS, columns=list(self.columns)):
                for row in plain_rows(batch, self.columns):
                    if place not in self.deleted:
                        yield row
                    place += 1


@dataclass(frozen=True)
class SpoolPiece:
    path: Path
    mark: str
    inode: int
    start: int
    size: int
    base: int
    terms: Terms

    @property
    def first_seq(self) -> int:
        return self.base

    @property
    def suspects(self) -> tuple[str, ...]:
        return ()

    def rows(self, dataset: Dataset, built: Built) -> Iterator[tuple[int, Row]]:
        report = PieceReport(self.mark, consumed=self.start)
        judge = Judge(dataset, self.terms, built, report, str(self.path))
        given = 0
        try:
            for line in self._lines(report):
                for theirs in _rows_of(line, judge):
                    row = judge.judged(theirs, given, pending=True)
                    given += 1
                    if row is not None:
                        yield self.base + given - 1, row
        except OSError as error:
            judge.give_up(f"{self.path} cannot be read: {error}", range(self.base, self.base + given))
        judge.close()

    def _lines(self, report: PieceReport) -> Iterator[bytes]:
        """Whole lines among the pinned bytes."""
        with open_regular(self.path) as file:
            about = os.fstat(file.fileno())
            if about.st_ino != self.inode or about.st_size < self.size:
                raise OSError("it was flushed or replaced meanwhile; nothing was taken, run the command again")
            taken = hash_of(file, self.start)
            while report.consumed < self.size:
                line = file.readline(self.size - report.consumed)
                if not line.endswith(b"\n"):
                    report.torn_bytes = self.size - report.consumed
                    break
                report.consumed += len(line)
                taken.update(line)
                if line.strip():
                    yield line
        report.taken_hash = taken.hexdigest()


def _rows_of(line: bytes, judge: Judge) -> Iterator[Mapping[str, Any]]:
    """The rows of an envelope `{"version": 1, "columns": […], "rows": […]}`; a line that is none is kept as it is."""
    try:
        held = canonical.parse(line)
        sound = held["version"] == _ENVELOPE_VERSION and isinstance(held["columns"], list)
        rows = held["rows"] if sound else None
    except (ValueError, KeyError, TypeError, RecursionError):
        rows = None
    if not isinstance(rows, list):
        judge.no_row(0, "the line is no envelope of version 1 with columns and rows", line)
        return
    for place, row in enumerate(rows):
        if isinstance(row, dict):
            yield row
        else:
            judge.no_row(place, "a row is a JSON object", as_kept(row))
