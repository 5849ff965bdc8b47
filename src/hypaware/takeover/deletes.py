"""Deleted rows of a data file: the positions in deletion vectors and position-delete files.

A deletion vector is a blob in a Puffin file: length, magic, the positions as 32-bit Roaring bitmaps (one for each upper
half), checksum. A position-delete file is Parquet with `file_path` and `pos`.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path

_MAGIC = 0xD1D33964
_NO_RUNS, _WITH_RUNS = 12346, 12347
_ARRAY_MAX = 4096
_BITMAP_BYTES = 8192


def in_vector(path: Path, offset: int, size: int) -> Iterator[int]:
    """Yield the positions of one deletion vector; raise ValueError if it is damaged."""
    with open(path, "rb") as file:
        file.seek(offset)
        blob = file.read(size)
    try:
        length, magic = struct.unpack_from(">II", blob)
        (checksum,) = struct.unpack_from(">I", blob, len(blob) - 4)
        if length != len(blob) - 8 or magic != _MAGIC or checksum != zlib.crc32(blob[4:-4]):
            raise ValueError(f"{path}: the deletion vector at {offset} is damaged")
        yield from _positions(blob[8:-4])
    except (struct.error, IndexError) as error:
        raise ValueError(f"{path}: the deletion vector at {offset} is cut short") from error


def in_file(path: Path) -> Iterator[tuple[str, int]]:
    """Yield (data file as the table names it, position) from a position-delete file."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=["file_path", "pos"]):
            yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)


def _positions(data: bytes) -> Iterator[int]:
    (bitmaps,) = struct.unpack_from("<Q", data)
    offset = 8
    for _ in range(bitmaps):
        (upper,) = struct.unpack_from("<I", data, offset)
        found, offset = _roaring(data, offset + 4)
        for lower in found:
            yield upper << 32 | lower


def _roaring(data: bytes, offset: int) -> tuple[list[int], int]:
    """Return the numbers of a 32-bit bitmap and the offset of its end."""
    (cookie,) = struct.unpack_from("<I", data, offset)
    runs = b""
    if cookie == _NO_RUNS:
        (count,) = struct.unpack_from("<I", data, offset + 4)
        offset += 8
    elif cookie & 0xFFFF == _WITH_RUNS:
        count = (cookie >> 16) + 1
        runs = data[offset + 4 : offset + 4 + (count + 7) // 8]
        offset += 4 + len(runs)
    else:
        raise ValueError(f"{cookie} is not the cookie of a Roaring bitmap")
    headers = [struct.unpack_from("<HH", data, offset + 4 * index) for index in range(count)]
    offset += 4 * count
    if not runs or count >= 4:
        offset += 4 * count  # container offsets, not needed: containers follow each other
    found: list[int] = []
    for index, (key, size_minus_one) in enumerate(headers):
        is_run = bool(runs) and bool(runs[index // 8] >> index % 8 & 1)
        lowers, offset = _container(data, offset, size_minus_one + 1, is_run)
        found.extend(key << 16 | lower for lower in lowers)
    return found, offset


def _container(data: bytes, offset: int, size: int, is_run: bool) -> tuple[Iterator[int] | array[int], int]:
    if is_run:
        (count,) = struct.unpack_from("<H", data, offset)
        pairs = struct.unpack_from(f"<{2 * count}H", data, offset + 2)
        spans = [range(start, start + length + 1) for start, length in zip(pairs[::2], pairs[1::2], strict=True)]
        return (number for span in spans for number in span), offset + 2 + 4 * count
    if size <= _ARRAY_MAX:
        return array("H", struct.unpack_from(f"<{size}H", data, offset)), offset + 2 * size
    bits = int.from_bytes(data[offset : offset + _BITMAP_BYTES], "little")
    return (number for number in range(1 << 16) if bits >> number & 1), offset + _BITMAP_BYTES
