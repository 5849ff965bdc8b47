"""The folder for the temporary files of one session: `<home>/engine/tmp/spark-*`.

It is locked (flock) through a descriptor that this process and its JVM share, so it stays locked while either of them
runs. The next session removes folders that are not locked.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Scratch:
    path: Path
    fd: int

    @classmethod
    def create(cls, parent: Path) -> Scratch:
        _sweep(parent)
        while True:
            path = Path(tempfile.mkdtemp(prefix="spark-", dir=parent))
            with suppress(FileNotFoundError):
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
                fcntl.flock(fd, fcntl.LOCK_EX)
                # Another session may have removed it before it was locked.
                if path.exists():
                    return cls(path, fd)
                os.close(fd)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.fd)


def _sweep(parent: Path) -> None:
    for path in parent.glob("spark-*"):
        with suppress(FileNotFoundError):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                with suppress(BlockingIOError):
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(fd)
