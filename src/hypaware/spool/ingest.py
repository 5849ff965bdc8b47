"""Ingest NDJSON into the spool: each line is a row, validated before it is stored."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, BinaryIO

from hypaware.home import Home
from hypaware.model import canonical, datasets
from hypaware.model.datasets import Dataset, Row, RowRejected, coerce_row
from hypaware.spool.writer import SealRule, Spool

_BATCH_ROWS = 1_000
_BATCH_BYTES = 4 << 20
MAX_LINE_BYTES = 64 << 20
_UTF8_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class RejectedLine:
    line: int
    reason: str


@dataclass
class IngestReport:
    dataset: str
    accepted: int = 0
    rejected: list[RejectedLine] = field(default_factory=list)
    segments: int = 0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def ingest(
    home: Home,
    dataset: str,
    lines: BinaryIO,
    *,
    strict: bool = False,
    progress: Callable[[str, float | None, float | None], None] = lambda _message, _done, _total: None,
) -> IngestReport:
    """Store the valid rows and report why others were rejected. Accepted rows are durable on return.

    `strict` stores nothing if any line is rejected.
    """
    definition = datasets.get(dataset)
    report = IngestReport(dataset)
    # Segments are sealed by size and at the end; this process never idles, so it needs no timer.
    with Spool(home, SealRule(linger=float("inf"))) as spool, _rewindable(lines, strict) as rewindable:
        if strict:
            start = rewindable.tell()
            for _ in _coerce_lines(definition, rewindable, spool.gateway_id, report):
                pass
            if report.rejected:
                return report
            rewindable.seek(start)
        batch: list[Row] = []
        size = 0
        for row, length in _coerce_lines(definition, rewindable, spool.gateway_id, report):
            batch.append(row)
            size += length
            if len(batch) >= _BATCH_ROWS or size >= _BATCH_BYTES:
                report.accepted += spool.append_coerced(dataset, batch)
                progress(f"storing rows of {dataset}", report.accepted, None)
                batch, size = [], 0
        report.accepted += spool.append_coerced(dataset, batch)
        report.segments = spool.seal() + spool.sealed_by_size
    return report


def _coerce_lines(
    dataset: Dataset, lines: BinaryIO, gateway_id: str, report: IngestReport
) -> Iterator[tuple[Row, int]]:
    number = 0
    while line := lines.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            while line and not line.endswith(b"\n"):
                line = lines.readline(MAX_LINE_BYTES)
            report.rejected.append(RejectedLine(number, f"the line is longer than {MAX_LINE_BYTES >> 20} MiB"))
            continue
        if number == 1:
            line = line.removeprefix(_UTF8_BOM)
        if not line.strip():
            continue
        try:
            row = canonical.loads(line)
        except (ValueError, RecursionError) as error:
            report.rejected.append(RejectedLine(number, f"not JSON: {error}"))
            continue
        try:
            yield coerce_row(dataset, row, gateway_id), len(line)
        except RowRejected as reason:
            report.rejected.append(RejectedLine(number, str(reason)))


@contextmanager
def _rewindable(lines: BinaryIO, needed: bool) -> Iterator[BinaryIO]:
    """Yield the input, or a temporary copy if it must be read twice and cannot be rewound."""
    if not needed or lines.seekable():
        yield lines
        return
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(lines, copy)
        copy.seek(0)
        yield copy
