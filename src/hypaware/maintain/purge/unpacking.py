"""The bytes of a file before compression: gzip, zstd, and the LZ4 blocks in which Spark spills.

Searching for text in a compressed file requires decompressing it. A file that cannot be decompressed is returned as
stored.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

_GZIP, _ZSTD, _LZ4 = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"LZ4Block"
_BLOCK = struct.Struct("<8sBiii")
_RAW_METHOD = 0x10
_MAX_BYTES = 256 << 20
_PIECE_BYTES = 8 << 20
_LONGEST_WORD = 1_024


def contents(path: Path) -> Iterator[bytes]:
    """Yield the stored bytes, in overlapping pieces so that no word is split, then the decompressed bytes."""
    with open(path, "rb") as file:
        packed = file.read(len(_LZ4)).startswith((_GZIP, _ZSTD, _LZ4))
        file.seek(0)
        overlap = b""
        while block := file.read(_PIECE_BYTES):
            yield overlap + block
            overlap = block[-_LONGEST_WORD:]
        if packed:
            file.seek(0)
            yield from _decompress(file.read(_MAX_BYTES))


def _decompress(stored: bytes) -> Iterator[bytes]:
    try:
        if stored.startswith(_GZIP):
            yield gzip.decompress(stored)
        elif stored.startswith(_ZSTD):
            with pa.CompressedInputStream(pa.BufferReader(stored), "zstd") as unpacked:
                yield unpacked.read()
        else:
            yield b"".join(_lz4_blocks(stored))
    except (OSError, EOFError, zlib.error, pa.ArrowException, struct.error):
        return


def _lz4_blocks(stored: bytes) -> Iterator[bytes]:
    """Decode the framing of lz4-java: a header with both lengths precedes each block."""
    codec, position = pa.Codec("lz4_raw"), 0
    while position + _BLOCK.size <= len(stored):
        magic, token, packed, unpacked, _checksum = _BLOCK.unpack_from(stored, position)
        if magic != _LZ4:
            return
        position += _BLOCK.size
        block = stored[position : position + packed]
        position += packed
        if token & 0xF0 == _RAW_METHOD:
            yield block
        elif unpacked:
            yield codec.decompress(block, decompressed_size=unpacked, asbytes=True)
