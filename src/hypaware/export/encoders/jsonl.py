"""JSON lines: one object per line, without null columns, JSON columns as values, times as UTC text.

The lines are those of `export.ndjson`, compressed with gzip, which everything reads, or with zstd, which is smaller and
faster.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa

from hypaware.export import ndjson
from hypaware.export.encoders import typed
from hypaware.export.encoders.encoder import Encoder

_ROWS_AT_ONCE = 8192
_GZIP_LEVEL = 1


def _write_gzip(table: pa.Table, file: BinaryIO) -> None:
    # Without a name and a time, so that the same rows give the same bytes.
    with gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as out:
        for block in _texts(table):
            out.write(block)


def _write_zstd(table: pa.Table, file: BinaryIO) -> None:
    # A single frame: some readers stop at the end of the first one.
    compressed = pa.BufferOutputStream()
    with pa.CompressedOutputStream(compressed, "zstd") as out:
        for block in _texts(table):
            out.write(block)
    file.write(compressed.getvalue())


def _texts(table: pa.Table) -> Iterator[bytes]:
    json_columns = typed.json_columns(table)
    for start in range(0, len(table), _ROWS_AT_ONCE):
        yield b"".join(ndjson.encode(table.slice(start, _ROWS_AT_ONCE), json_columns).lines)


JSONL = Encoder("jsonl", "jsonl.gz", "application/gzip", _write_gzip)
JSONL_ZSTD = Encoder("jsonl-zstd", "jsonl.zst", "application/zstd", _write_zstd)
