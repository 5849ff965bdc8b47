"""A data file or a spool file of the original as a piece of a build. Runs in Spark tasks; only reads.

A piece yields the same rows with the same sequences every time: a data file never changes, and of a spool file exactly
the recorded bytes are read. If a file cannot be read, its rows are withdrawn and the error is reported; the caller
decides whether the takeover continues without the file.
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
    """Its columns and their current names."""
    deleted: frozenset[int]
    seqs: bytes
    """The sequences of its live rows, in file order, 64 bits each."""
    bytes: int
    terms: Terms

    @property
    def first_seq(self) -> int:
        return min(array("q", self.seqs), default=0)

    @property
    def blamed_segments(self) -> tuple[str, ...]:
        return ()

    def rows(self, dataset: Dataset, built: Built) -> Iterator[tuple[int, Row]]:
        report = PieceReport(self.mark)
        converter = Judge(dataset, self.terms, built, report, str(self.path))
        seqs = array("q", self.seqs)
        try:
            for position, (seq, original) in enumerate(zip(seqs, self._original_rows(), strict=True)):
                if (row := converter.convert(original, position, pending=False)) is not None:
                    yield seq, row
        except (OSError, ValueError, pa.ArrowException) as error:
            converter.withdraw(f"cannot read {self.path}: {error}", seqs)
        converter.close()

    def _original_rows(self) -> Iterator[dict[str, Any]]:
        with pq.ParquetFile(self.path) as envelope:
            position = 0
            for batch in envelope.iter_batches(_BATCH_ROWS, columns=list(self.columns)):
                for row in plain_rows(batch, self.columns):
                    if position not in self.deleted:
                        yield row
                    position += 1


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
    def blamed_segments(self) -> tuple[str, ...]:
        return ()

    def rows(self, dataset: Dataset, built: Built) -> Iterator[tuple[int, Row]]:
        report = PieceReport(self.mark, consumed=self.start)
        converter = Judge(dataset, self.terms, built, report, str(self.path))
        count = 0
        try:
            for line in self._lines(report):
                for original in _rows_of(line, converter):
                    row = converter.convert(original, count, pending=True)
                    count += 1
                    if row is not None:
                        yield self.base + count - 1, row
        except OSError as error:
            converter.withdraw(f"cannot read {self.path}: {error}", range(self.base, self.base + count))
        converter.close()

    def _lines(self, report: PieceReport) -> Iterator[bytes]:
        """Yield complete lines among the recorded bytes."""
        with open_regular(self.path) as file:
            status = os.fstat(file.fileno())
            if status.st_ino != self.inode or status.st_size < self.size:
                raise OSError(
                    "it was flushed or replaced during the import; nothing was imported, run the command again"
                )
            digest = hash_of(file, self.start)
            while report.consumed < self.size:
                line = file.readline(self.size - report.consumed)
                if not line.endswith(b"\n"):
                    report.torn_bytes = self.size - report.consumed
                    break
                report.consumed += len(line)
                digest.update(line)
                if line.strip():
                    yield line
        report.taken_hash = digest.hexdigest()


def _rows_of(line: bytes, converter: Judge) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of an envelope `{"version": 1, "columns": […], "rows": […]}`; keep any other line as a reject."""
    try:
        envelope = canonical.parse(line)
        is_valid = envelope["version"] == _ENVELOPE_VERSION and isinstance(envelope["columns"], list)
        rows = envelope["rows"] if is_valid else None
    except (ValueError, KeyError, TypeError, RecursionError):
        rows = None
    if not isinstance(rows, list):
        converter.reject_line(0, "the line is not an envelope of version 1 with columns and rows", line)
        return
    for position, row in enumerate(rows):
        if isinstance(row, dict):
            yield row
        else:
            converter.reject_line(position, "the row is not a JSON object", as_kept(row))
