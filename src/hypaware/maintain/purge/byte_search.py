"""Search for words in files by bytes, decompressed if necessary: gzip, zstd, and the LZ4 blocks in which Spark spills.

Databases are searched by another process, which runs this module: closing any handle of a file releases every POSIX
lock that the process holds on it, including SQLite's. If this process read `state.db-shm`, other processes would
believe that it no longer has the database open, and the last of them to close it would delete the log that is still in
use here.
"""

from __future__ import annotations

import gzip
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import orjson
import pyarrow as pa

_GZIP, _ZSTD, _LZ4 = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"LZ4Block"
_LZ4_HEADER = struct.Struct("<8sBiii")
_RAW_METHOD = 0x10
_MAX_BYTES = 256 << 20
_PIECE_BYTES = 8 << 20
_LONGEST_WORD = 1_024


def is_database(path: Path) -> bool:
    """Return whether the file is a database, its write-ahead log, its shared-memory index, or a journal."""
    return path.suffix.startswith(".db")


def count_in_databases(paths: Sequence[Path], needles: Sequence[bytes]) -> Mapping[Path, int]:
    """Return the counts for many files, from a process of its own; files that are gone by then are left out."""
    if not paths:
        return {}
    request = orjson.dumps([[str(path) for path in paths], [needle.decode() for needle in needles]])
    process = subprocess.run([sys.executable, "-m", __name__], input=request, capture_output=True, check=False)
    if process.returncode != 0:
        raise OSError(0, f"the search process failed: {process.stderr.decode(errors='replace').strip()[-300:]}")
    return {Path(path): count for path, count in orjson.loads(process.stdout).items()}


def count_occurrences(path: Path, needles: Iterable[bytes]) -> int:
    """Return how many of the words occur in the file. Raise `FileNotFoundError` if it is gone."""
    return len({needle for content in file_contents(path) for needle in needles if _contains(content, needle)})


def _contains(content: bytes, needle: bytes) -> bool:
    """Search for a whole word: `message-57` does not contain `message-5`."""
    position = content.find(needle)
    while position >= 0:
        after = content[position + len(needle) : position + len(needle) + 1]
        if not (after.isalnum() or after in (b"-", b"_")):
            return True
        position = content.find(needle, position + 1)
    return False


def file_contents(path: Path) -> Iterator[bytes]:
    """Yield the stored bytes, in overlapping pieces so that no word is split, then the decompressed bytes.

    A file that cannot be decompressed yields only its stored bytes.
    """
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
    while position + _LZ4_HEADER.size <= len(stored):
        magic, token, packed, unpacked, _checksum = _LZ4_HEADER.unpack_from(stored, position)
        if magic != _LZ4:
            return
        position += _LZ4_HEADER.size
        block = stored[position : position + packed]
        position += packed
        if token & 0xF0 == _RAW_METHOD:
            yield block
        elif unpacked:
            yield codec.decompress(block, decompressed_size=unpacked, asbytes=True)


def _main() -> None:
    paths, needles = orjson.loads(sys.stdin.buffer.read())
    found = {}
    for path in paths:
        try:
            found[path] = count_occurrences(Path(path), [needle.encode() for needle in needles])
        except FileNotFoundError:
            continue
    sys.stdout.buffer.write(orjson.dumps(found))


if __name__ == "__main__":
    _main()
