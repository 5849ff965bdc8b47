"""Rows of the original: numbering, reading and conversion into rows of this program. Reading runs in Spark tasks.

Rows get sequences in the order of their old ones, rows without one first. So "delivered up to the old sequence w" means
"delivered up to one of ours". Rows in a spool come last. Their number is unknown before they are read, so each spool
file gets as many numbers as its bytes could hold rows. Gaps are allowed.

A piece yields the same rows with the same sequences every time: a data file never changes, and of a spool file exactly
the recorded bytes are read. If a file cannot be read, its rows are withdrawn and the error is reported.
"""

from __future__ import annotations

import base64
import contextlib
import os
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hypaware.home.durable_files import open_regular_file
from hypaware.lake.build import BuildResult, BuildSettings, Reject, build_rows
from hypaware.model import canonical, datasets
from hypaware.model.columns import ColumnType, format_timestamp
from hypaware.model.datasets import GATEWAY, INTERNAL, SEQ, Dataset, Row, RowRejected, coerce_row
from hypaware.takeover.cache import CacheSpoolFile, SurveyedFile, hash_prefix
from hypaware.takeover.report import PieceReport, SourceTally
from hypaware.takeover.table import CacheDataFile
from hypaware.takeover.variant import decode_variant

ATTRIBUTES = "attributes"
_VERSION = "schema_version"
_EPOCH = datetime(1970, 1, 1)
# A row in an envelope takes at least two bytes, plus one separator.
_MIN_ROW_BYTES = 3
_LOWEST = -(2**63)
_BATCH_ROWS = 512
_ENVELOPE_VERSION = 1


@dataclass(frozen=True)
class RowNumbering:
    files: tuple[tuple[SurveyedFile, pa.Array], ...] = field(compare=False)
    """Data files and the positions of their live rows, counted from 1."""
    spools: tuple[tuple[CacheSpoolFile, int], ...]
    """(file, its first position)"""
    size: int
    """Number of positions; at least one, so that ranges never touch."""


def number_rows(files: Sequence[SurveyedFile], spools: Sequence[CacheSpoolFile]) -> RowNumbering:
    """Assign positions. `files` are in the order of their rows without a sequence."""
    seqs = pa.concat_arrays([file.seqs for file in files]) if files else pa.array([], pa.int64())
    ranks = pc.rank(pc.fill_null(seqs, _LOWEST), sort_keys="ascending", tiebreaker="first").cast(pa.int64())
    numbered, offset = [], 0
    for file in files:
        numbered.append((file, ranks.slice(offset, len(file.seqs))))
        offset += len(file.seqs)
    spool_positions, first = [], offset + 1
    for spool in spools:
        max_rows = (spool.size - spool.start) // _MIN_ROW_BYTES + 1
        spool_positions.append((spool, first))
        first += max_rows
    return RowNumbering(tuple(numbered), tuple(spool_positions), max(1, first - 1))


@dataclass(frozen=True)
class TakeoverTerms:
    """Settings shared by all pieces of a takeover."""

    gateway_id: str
    kept_from: str | None = None
    """The first day that retention keeps; older rows are not imported."""


@dataclass(frozen=True)
class TablePiece:
    file: CacheDataFile
    mark: str
    columns: Mapping[str, str]
    """Its columns and their current names."""
    seqs: bytes
    """The sequences of its live rows, in file order, 64 bits each."""
    terms: TakeoverTerms

    @property
    def size(self) -> int:
        return self.file.bytes

    @property
    def first_seq(self) -> int:
        return min(array("q", self.seqs), default=0)

    def rows(self, dataset: Dataset, built: BuildResult) -> Iterator[tuple[int, Row]]:
        converter = RowConverter(dataset, self.terms, built, PieceReport(self.mark), self.file.path)
        seqs = array("q", self.seqs)
        try:
            for position, (seq, original) in enumerate(zip(seqs, self._original_rows(), strict=True)):
                if (row := converter.convert(original, position, pending=False)) is not None:
                    yield seq, row
        except (OSError, ValueError, pa.ArrowException) as error:
            converter.withdraw(error, seqs)
        converter.close()

    def _original_rows(self) -> Iterator[dict[str, Any]]:
        with pq.ParquetFile(self.file.path) as envelope:
            position = 0
            for batch in envelope.iter_batches(_BATCH_ROWS, columns=list(self.columns)):
                for row in decode_rows(batch, self.columns):
                    if position not in self.file.deleted:
                        yield row
                    position += 1


@dataclass(frozen=True)
class SpoolPiece:
    spool: CacheSpoolFile
    first_seq: int
    terms: TakeoverTerms

    @property
    def size(self) -> int:
        return self.spool.size - self.spool.start

    def rows(self, dataset: Dataset, built: BuildResult) -> Iterator[tuple[int, Row]]:
        report = PieceReport(self.spool.name, consumed=self.spool.start)
        converter = RowConverter(dataset, self.terms, built, report, self.spool.path)
        count = 0
        try:
            for line in self._lines(report):
                for original in _envelope_rows(line, converter):
                    row = converter.convert(original, count, pending=True)
                    count += 1
                    if row is not None:
                        yield self.first_seq + count - 1, row
        except OSError as error:
            converter.withdraw(error, range(self.first_seq, self.first_seq + count))
        converter.close()

    def _lines(self, report: PieceReport) -> Iterator[bytes]:
        """Yield complete lines among the recorded bytes."""
        spool = self.spool
        with open_regular_file(spool.path) as file:
            status = os.fstat(file.fileno())
            if status.st_ino != spool.inode or status.st_size < spool.size:
                raise OSError(
                    "it was flushed or replaced during the import; nothing was imported, run the command again"
                )
            digest = hash_prefix(file, spool.start)
            while report.consumed < spool.size:
                line = file.readline(spool.size - report.consumed)
                if not line.endswith(b"\n"):
                    report.torn_bytes = spool.size - report.consumed
                    break
                report.consumed += len(line)
                digest.update(line)
                if line.strip():
                    yield line
        report.taken_hash = digest.hexdigest()


def _envelope_rows(line: bytes, converter: RowConverter) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of an envelope `{"version": 1, "columns": […], "rows": […]}`; keep any other line as a reject."""
    try:
        envelope = canonical.loads(line)
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
            converter.reject_line(position, "the row is not a JSON object", encode_rejected(row))


TakeoverPiece = TablePiece | SpoolPiece


@dataclass(frozen=True)
class TakeoverTask:
    settings: BuildSettings
    pieces: tuple[TakeoverPiece, ...]
    runs_in_driver: bool = True

    @property
    def bytes(self) -> int:
        return sum(piece.size for piece in self.pieces)

    @property
    def files(self) -> int:
        return len(self.pieces)

    def run(self) -> BuildResult:
        dataset, built = datasets.get(self.settings.dataset), BuildResult()
        rows = chain.from_iterable(piece.rows(dataset, built) for piece in self.pieces)
        return build_rows(self.settings, self.pieces[0].first_seq, rows, built)


def build_pieces(numbering: RowNumbering, after: int, terms: TakeoverTerms) -> list[TakeoverPiece]:
    pieces: list[TakeoverPiece] = []
    for file, positions in numbering.files:
        if len(positions):
            seqs = array("q", pc.add(positions, after).to_pylist()).tobytes()
            pieces.append(TablePiece(file.data_file, file.mark, dict(file.columns), seqs, terms))
    pieces.sort(key=lambda piece: piece.first_seq)
    return pieces + [SpoolPiece(spool, after + first, terms) for spool, first in numbering.spools]


class RowConverter:
    """Converts or rejects the rows of one file, and counts both and the values that have no column.

    The original row names the installation that recorded it. The converted row belongs to this home, so that a later
    import of the same transcripts recognises it by its key. The old installation id is kept in
    `attributes.gateway.taken_over_from`. Values without a column are kept by name in `attributes.taken_over`, and so is
    a different schema version.
    """

    def __init__(
        self, dataset: Dataset, terms: TakeoverTerms, built: BuildResult, report: PieceReport, path: Path
    ) -> None:
        self._dataset, self._terms, self._built, self._report, self._path = dataset, terms, built, report, path
        self._version = dataset.derive({}, terms.gateway_id).get(_VERSION)
        self._has_attributes = any(
            column.name == ATTRIBUTES and column.type is ColumnType.JSON for column in dataset.columns
        )
        self._set_aside: Counter[str] = Counter()

    def convert(self, original: Mapping[str, Any], position: int, *, pending: bool) -> Row | None:
        tally = self._report.tallies.setdefault(str(self._dataset.source_of(original)), SourceTally())
        tally.found += 1
        tally.pending += pending
        tally.without_sequence += not pending and original.get(SEQ) is None
        try:
            row = coerce_row(self._dataset, self._adapt(original), self._terms.gateway_id)
        except (RowRejected, RecursionError) as reason:
            tally.rejected += 1
            self._reject(position, str(reason) or "nested too deeply", encode_rejected(original))
            return None
        if self._terms.kept_from is not None and row[self._dataset.time_column][:10] < self._terms.kept_from:
            tally.too_old += 1
            return None
        return row

    def reject_line(self, position: int, reason: str, line: bytes) -> None:
        self._report.not_rows += 1
        self._reject(position, reason, line)

    def _reject(self, position: int, reason: str, line: bytes) -> None:
        self._built.rejects.append(Reject(str(self._path), position, reason, line))

    def withdraw(self, error: Exception, seqs: Iterable[int]) -> None:
        """Withdraw the rows of a file that cannot be read."""
        ranges = self._built.withdrawn
        for seq in sorted(seqs):
            if ranges and ranges[-1].stop == seq:
                ranges[-1] = range(ranges[-1].start, seq + 1)
            else:
                ranges.append(range(seq, seq + 1))
        self._built.rejects = [each for each in self._built.rejects if each.segment != str(self._path)]
        self._report.error = f"cannot read {self._path}: {error}"
        self._report.tallies, self._report.not_rows = {}, 0

    def close(self) -> None:
        self._report.set_aside = dict(self._set_aside)
        self._built.reports.append(self._report)

    def _adapt(self, original: Mapping[str, Any]) -> Row:
        """Return the row in the form that `coerce_row` accepts."""
        known = self._dataset.coercers
        row: Row = {}
        extra: dict[str, Any] = {}
        for name, value in original.items():
            if value is None or name in INTERNAL:
                continue
            if name in known:
                row[name] = value
            else:
                extra[name] = _as_json(value)
        if self._version is not None and row.get(_VERSION, self._version) != self._version:
            extra[_VERSION] = row.pop(_VERSION)
        recorded_by = row.pop(GATEWAY, None)
        if self._has_attributes:
            self._set_attributes(row, recorded_by, extra)
        self._set_aside.update(extra.keys())
        return row

    def _set_attributes(self, row: Row, recorded_by: Any, extra: dict[str, Any]) -> None:
        attributes = row.get(ATTRIBUTES, {})
        if isinstance(attributes, str):
            with contextlib.suppress(ValueError, RecursionError):
                attributes = canonical.loads(attributes)
        if not isinstance(attributes, dict):
            extra[ATTRIBUTES], attributes = attributes, {}
        if extra:
            attributes = {**attributes, "taken_over": extra}
        if recorded_by is not None and recorded_by != self._terms.gateway_id:
            existing = attributes.get("gateway", {})
            gateway = {
                **(existing if isinstance(existing, dict) else {"was": existing}),
                "taken_over_from": recorded_by,
            }
            attributes = {**attributes, "gateway": gateway}
        if attributes:
            row[ATTRIBUTES] = attributes


def encode_rejected(row: Any) -> bytes:
    """Encode a rejected row as bytes; never fails."""
    try:
        return orjson.dumps(row, default=str, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return repr(row).encode("utf-8", "backslashreplace")


def _as_json(value: Any) -> Any:
    """Convert a value of an unknown column into a JSON value."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return format_timestamp(value) if value.tzinfo else value.isoformat()
    if isinstance(value, date | time | Decimal):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _as_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(each) for each in value]
    return value


def decode_rows(batch: pa.RecordBatch, columns: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Decode columns into rows of plain values: VARIANT as JSON values, timestamps as text."""
    names, values = [], []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        names.append(columns[name])
        storage = column.storage if isinstance(column, pa.ExtensionArray) else column
        if pa.types.is_struct(storage.type) and storage.type.get_field_index("metadata") >= 0:
            values.append(_json_values(storage))
        elif pa.types.is_timestamp(storage.type):
            values.append(_timestamps(storage))
        else:
            values.append(storage.to_pylist())
    return (dict(zip(names, row, strict=True)) for row in zip(*values, strict=True))


def _json_values(variants: pa.StructArray) -> list[Any]:
    columns = (variants.is_valid(), variants.field("metadata"), variants.field("value"))
    values: list[Any] = []
    for valid, names, encoded in zip(*(column.to_pylist() for column in columns), strict=True):
        try:
            values.append(decode_variant(names, encoded) if valid and encoded is not None else None)
        except ValueError as error:
            values.append(MalformedValue(str(error)))
    return values


def _timestamps(column: pa.Array) -> list[Any]:
    """Return timestamps as text: a file can hold timestamps that Python cannot represent."""
    zone = "Z" if column.type.tz else ""
    micros = column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64()).to_pylist()
    return [None if value is None else _timestamp(value, zone) for value in micros]


@lru_cache(maxsize=4096)
def _timestamp(micros: int, zone: str) -> Any:
    try:
        return (_EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds") + zone
    except OverflowError:
        return MalformedValue(f"the time {micros} microseconds after 1970 is outside the years 1 to 9999")


@dataclass(frozen=True)
class MalformedValue:
    """Stands for a value that cannot be read: its row is rejected, other rows of the file are not."""

    reason: str

    def __str__(self) -> str:
        return self.reason
