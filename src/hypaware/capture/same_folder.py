"""The identity of a folder: a text that another folder at the same path does not share.

It consists of the inode and the birth time. The inode alone is not enough, because some file systems reuse it at once
for a folder that is created in place of a removed one. Linux reports the birth time only through `statx`, which Python
does not support yet; without a birth time the inode must suffice.
"""

from __future__ import annotations

import ctypes
import os
import struct
from functools import cache
from pathlib import Path
from typing import Any

_AT_FDCWD = -100
_WANTED = 0x800
"""STATX_BTIME"""
_SIZE, _BIRTH_AT = 256, 80
"""Layout of the kernel's struct: seconds (64 bit) and nanoseconds (32 bit) of the birth time at `_BIRTH_AT`."""


def identity(folder: Path) -> str:
    """Return the identity of a folder; raise OSError if it does not exist."""
    status = folder.stat()
    birth = _birth(folder, status)
    return f"{status.st_ino}" if birth is None else f"{status.st_ino}@{birth}"


def _birth(folder: Path, status: os.stat_result) -> str | None:
    attributes: Any = status
    if hasattr(attributes, "st_birthtime_ns"):
        return str(attributes.st_birthtime_ns)
    if hasattr(attributes, "st_birthtime"):
        return str(attributes.st_birthtime)
    statx = _statx()
    if statx is None:
        return None
    buffer = ctypes.create_string_buffer(_SIZE)
    if statx(_AT_FDCWD, os.fsencode(folder), 0, _WANTED, buffer) != 0:
        return None
    (mask,) = struct.unpack_from("=I", buffer, 0)
    seconds, nanoseconds = struct.unpack_from("=qI", buffer, _BIRTH_AT)
    return f"{seconds}.{nanoseconds:09}" if mask & _WANTED else None


@cache
def _statx() -> Any:
    """Return the C function; None if the system has none."""
    try:
        return ctypes.CDLL(None).statx
    except (OSError, AttributeError):
        return None
