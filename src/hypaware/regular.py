"""Opens files of other programs: only regular files, and never blocking on a pipe."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO


class NotRegular(OSError):
    """The path is a pipe, a socket, a device or a folder, not a regular file."""


def open_regular(path: Path) -> BinaryIO:
    # Without O_NONBLOCK, opening a named pipe would block until a writer appears.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise NotRegular(f"{path} is not a regular file")
        return open(fd, "rb")
    except BaseException:
        os.close(fd)
        raise
