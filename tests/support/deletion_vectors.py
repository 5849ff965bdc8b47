"""Deletion vectors in the format of Iceberg v3."""

from __future__ import annotations

import struct
import zlib
from collections import defaultdict
from collections.abc import Iterable

from pyroaring import BitMap

_MAGIC = b"\xd1\xd3\x39\x64"


def vector(positions: Iterable[int], *, runs: bool = False) -> bytes:
    by_upper: defaultdict[int, set[int]] = defaultdict(set)
    for position in positions:
        by_upper[position >> 32].add(position & 0xFFFFFFFF)
    body = struct.pack("<Q", len(by_upper))
    for upper, lowers in sorted(by_upper.items()):
        bitmap = BitMap(lowers)
        if runs:
            bitmap.run_optimize()
        body += struct.pack("<I", upper) + bitmap.serialize()
    framed = _MAGIC + body
    return struct.pack(">I", len(framed)) + framed + struct.pack(">I", zlib.crc32(framed))
