"""JSON lines: one object a line, only columns that are not null, JSON columns as values, times as UTC text.

The lines are those of the wire. Compressed by gzip, which everything reads, or by zstd, which is smaller and quicker.
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
    # Neither a name nor a time: the same rows give the same bytes.
    with gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as out:
        for text in _texts(table):
            out.write(text)


def _write_zstd(table: pa.Table, file: BinaryIO) -> None:
    # One frame: there are readers that stop at the end of the first.
    compressed = pa.BufferOutputStream()
    with pa.CompressedOutputStream(compressed, "zstd") as out:
        for text in _texts(table):
            out.write(text)
    file.write(compressed.getvalue())


def _texts(table: pa.Table) -> Iterator[bytes]:
    json_columns = typed.json_columns(table)
    for start in range(0, len(table), _ROWS_AT_ONCE):
        yield b"".join(ndjson.encode(table.slice(start, _ROWS_AT_ONCE), json_columns).lines)


JSONL = Encoder("jsonl", "jsonl.gz", "application/gzip", _write_gzip)
JSONL_ZSTD = Encoder("jsonl-zstd", "jsonl.zst", "application/zstd", _write_zstd)
