"""The bytes of a file as they were before they were packed: gzip, zstd, and the blocks in which Spark spills.

A look for text in a packed file must unpack it. What cannot be unpacked is given as it is.
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
_MOST = 256 << 20
_PIECE = 8 << 20
_LONGEST_WORD = 1_024


def contents(path: Path) -> Iterator[bytes]:
    """As stored, piece by piece such that no word is cut in two; and unpacked where it is packed."""
    with open(path, "rb") as file:
        packed = file.read(len(_LZ4)).startswith((_GZIP, _ZSTD, _LZ4))
        file.seek(0)
        before = b""
        while block := file.read(_PIECE):
            yield before + block
            before = block[-_LONGEST_WORD:]
        if packed:
            file.seek(0)
            yield from _unpacked(file.read(_MOST))


def _unpacked(stored: bytes) -> Iterator[bytes]:
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
    """As lz4-java frames them: a header with both lengths before each block."""
    codec, place = pa.Codec("lz4_raw"), 0
    while place + _BLOCK.size <= len(stored):
        magic, token, packed, unpacked, _checksum = _BLOCK.unpack_from(stored, place)
        if magic != _LZ4:
            return
        place += _BLOCK.size
        block = stored[place : place + packed]
        place += packed
        if token & 0xF0 == _RAW_METHOD:
            yield block
        elif unpacked:
            yield codec.decompress(block, decompressed_size=unpacked, asbytes=True)
