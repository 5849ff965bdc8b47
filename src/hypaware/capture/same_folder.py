"""Which folder it is that has a name: a text that another one in its place does not share.

Inode and time of birth. The inode alone is given out again at once by some file systems, to the folder that is made
where one was removed. Linux tells the birth only by `statx`, which Python does not know yet; where nobody tells it, the
inode has to do.
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
"""Of the kernel's struct; there lie seconds (64 bit) and nanoseconds (32 bit)."""


def identity(folder: Path) -> str:
    """Raises OSError where there is none."""
    about = folder.stat()
    birth = _birth(folder, about)
    return f"{about.st_ino}" if birth is None else f"{about.st_ino}@{birth}"


def _birth(folder: Path, about: os.stat_result) -> str | None:
    told: Any = about
    if hasattr(told, "st_birthtime_ns"):
        return str(told.st_birthtime_ns)
    if hasattr(told, "st_birthtime"):
        return str(told.st_birthtime)
    call = _statx()
    if call is None:
        return None
    found = ctypes.create_string_buffer(_SIZE)
    if call(_AT_FDCWD, os.fsencode(folder), 0, _WANTED, found) != 0:
        return None
    (mask,) = struct.unpack_from("=I", found, 0)
    seconds, nanoseconds = struct.unpack_from("=qI", found, _BIRTH_AT)
    return f"{seconds}.{nanoseconds:09}" if mask & _WANTED else None


@cache
def _statx() -> Any:
    """None where the system has none."""
    try:
        return ctypes.CDLL(None).statx
    except (OSError, AttributeError):
        return None
