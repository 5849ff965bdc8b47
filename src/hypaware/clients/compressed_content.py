"""The content of compressed sources: files whose names end in `.zst`.

A client that compresses a finished file replaces it as a whole, so the content is unpacked as a whole, into a file
without a name, in which lines and offsets are read as in a plain source.
"""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import BinaryIO

from backports import zstd

from hypaware.home.durable_files import open_regular_file

SUFFIX = ".zst"
MAX_CONTENT_BYTES = 8 << 30
"""Larger than any transcript. A larger content is not unpacked, so that a small file cannot fill the disk."""
MAX_RATIO = 32768
"""A block of the format has at least four bytes and at most 128 KiB of content."""
_OPTIONS: dict[int, int] = {zstd.DecompressionParameter.window_log_max: 27}
_BLOCK = 1 << 20


def is_compressed(path: Path) -> bool:
    return path.name.endswith(SUFFIX)


def unpack(packed: BinaryIO, size: int, max_bytes: int = MAX_CONTENT_BYTES) -> tuple[BinaryIO, bool]:
    """Return the content of the first `size` bytes as an unnamed file, and whether it is whole.

    What precedes a damaged part is returned. Raise OSError if the content is too large.
    """
    content = tempfile.TemporaryFile(prefix="hyp-unpacked-")  # noqa: SIM115
    try:
        is_whole = _unpack_into(content, packed, size, max_bytes)
        content.flush()
    except BaseException:
        content.close()
        raise
    return content, is_whole


def _unpack_into(content: BinaryIO, packed: BinaryIO, size: int, max_bytes: int) -> bool:
    stream: zstd.ZstdDecompressor | None = None
    read = written = 0
    data = b""
    while True:
        if not data and (stream is None or stream.needs_input):
            data = os.pread(packed.fileno(), min(_BLOCK, size - read), read)
            read += len(data)
            if not data:
                return stream is None
        stream = stream or zstd.ZstdDecompressor(options=_OPTIONS)
        try:
            block = stream.decompress(data, _BLOCK)
        except zstd.ZstdError:
            return False
        data = b""
        written += len(block)
        if written > max_bytes:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        content.write(block)
        if stream.eof:
            # Another frame may follow.
            data, stream = stream.unused_data, None


def read_head(path: Path, size: int) -> bytes:
    """Return the first bytes of the content of a source, compressed or not."""
    with open_regular_file(path) as file:
        head = file.read(size)
    if not is_compressed(path):
        return head
    try:
        return zstd.ZstdDecompressor(options=_OPTIONS).decompress(head, size)
    except zstd.ZstdError:
        return b""
