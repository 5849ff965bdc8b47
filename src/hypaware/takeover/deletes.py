"""Which rows of a data file were deleted: the positions that deletion vectors and position-delete files name.

A deletion vector is a blob of a Puffin file: length, magic, the positions as Roaring bitmaps of 32 bits (one for each
upper half), checksum. A position-delete file is Parquet with `file_path` and `pos`.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path

_MAGIC = 0xD1D33964
_PLAIN, _WITH_RUNS = 12346, 12347
_ARRAY_MOST = 4096
_BITMAP_BYTES = 8192


def in_vector(path: Path, offset: int, size: int) -> Iterator[int]:
    """The positions of one deletion vector; ValueError if it is not one."""
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
    """(data file as the table names it, position) of a position-delete file."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as held:
        for batch in held.iter_batches(columns=["file_path", "pos"]):
            yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)


def _positions(data: bytes) -> Iterator[int]:
    (bitmaps,) = struct.unpack_from("<Q", data)
    at = 8
    for _ in range(bitmaps):
        (upper,) = struct.unpack_from("<I", data, at)
        found, at = _roaring(data, at + 4)
        for lower in found:
            yield upper << 32 | lower


def _roaring(data: bytes, at: int) -> tuple[list[int], int]:
    """The numbers of a bitmap of 32 bits, and where it ends."""
    (cookie,) = struct.unpack_from("<I", data, at)
    runs = b""
    if cookie == _PLAIN:
        (count,) = struct.unpack_from("<I", data, at + 4)
        at += 8
    elif cookie & 0xFFFF == _WITH_RUNS:
        count = (cookie >> 16) + 1
        runs = data[at + 4 : at + 4 + (count + 7) // 8]
        at += 4 + len(runs)
    else:
        raise ValueError(f"a Roaring bitmap does not begin with {cookie}")
    heads = [struct.unpack_from("<HH", data, at + 4 * place) for place in range(count)]
    at += 4 * count
    if not runs or count >= 4:
        at += 4 * count  # where each container lies; they follow each other
    found: list[int] = []
    for place, (key, less_one) in enumerate(heads):
        is_run = bool(runs) and bool(runs[place // 8] >> place % 8 & 1)
        lowers, at = _container(data, at, less_one + 1, is_run)
        found.extend(key << 16 | lower for lower in lowers)
    return found, at


def _container(data: bytes, at: int, size: int, is_run: bool) -> tuple[Iterator[int] | array[int], int]:
    if is_run:
        (count,) = struct.unpack_from("<H", data, at)
        pairs = struct.unpack_from(f"<{2 * count}H", data, at + 2)
        spans = [range(start, start + more + 1) for start, more in zip(pairs[::2], pairs[1::2], strict=True)]
        return (number for span in spans for number in span), at + 2 + 4 * count
    if size <= _ARRAY_MOST:
        return array("H", struct.unpack_from(f"<{size}H", data, at)), at + 2 * size
    bits = int.from_bytes(data[at : at + _BITMAP_BYTES], "little")
    return (number for number in range(1 << 16) if bits >> number & 1), at + _BITMAP_BYTES
