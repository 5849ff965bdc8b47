"""Temporary files: `.<name>.<8 hex>.tmp` in the target's folder, locked (flock) while the writer lives.

Readers ignore them. Listing the folder removes those of killed writers.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypaware import durable

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.tmp", re.DOTALL)
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class Temporary:
    """`.<name>.<8 hex>.tmp` in the target's folder, locked (flock) while the writer lives. Steps may change threads.

    Readers ignore temporary files. Listing the folder removes those of killed writers.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self._path = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        self._fd: int | None = None

    def write(self, data: memoryview) -> None:
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        # On a disk without locks, sweeping cannot take them either and removes nothing.
        with contextlib.suppress(OSError):
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        durable.write_all(self._fd, data)
        durable.fsync_fd(self._fd)

    def rename(self) -> str:
        durable.rename(self._path, self.target)
        assert self._fd is not None
        return told_apart(os.fstat(self._fd))

    def link(self) -> bool:
        try:
            os.link(self._path, self.target, follow_symlinks=False)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # A disk without hard links (a USB stick): not atomic against a second writer, but as durable.
            if os.path.lexists(self.target):
                return False
            self._path.rename(self.target)
        return True

    def clean_up(self) -> None:
        self._path.unlink(missing_ok=True)
        durable.fsync_dir(self.target.parent)

    def discard(self) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
            os.close(self._fd)


@contextmanager
def on_its_way(target: Path) -> Iterator[Temporary]:
    temporary = Temporary(target)
    try:
        yield temporary
    finally:
        temporary.discard()


def swept(folder: Path) -> list[str]:
    """Return the sorted names in a folder, without temporary files. Removes those whose writer is dead."""
    names = []
    for path in folder.iterdir():
        if not _TEMPORARY.fullmatch(path.name):
            names.append(path.name)
            continue
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)
            finally:
                os.close(fd)
    return sorted(names)


def told_apart(found: os.stat_result) -> str:
    """Return a text that changes when the file is replaced."""
    return f"{found.st_ino}-{found.st_mtime_ns}-{found.st_size}"
