"""Opening files that belong to others: only regular ones, and never waiting for somebody at the other end of a pipe."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO


class NotRegular(OSError):
    """There is a pipe, a socket, a device or a folder where a file was expected."""


def open_regular(path: Path) -> BinaryIO:
    # A pipe that somebody put there would block an ordinary open for ever.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise NotRegular(f"{path} is not a regular file")
        return open(fd, "rb")
    except BaseException:
        os.close(fd)
        raise
