"""`--output FILE`: the whole result under its name, or nothing there but what was before.

Written beside the file under a hidden name and moved over it at the end. What is no regular file (a device, a named
pipe) is written to as it is; a symbolic link keeps pointing at what is replaced.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hypaware import durable
from hypaware.errors import HypError, UsageError


@contextmanager
def replacing(path: Path) -> Iterator[Callable[[bytes], None]]:
    """Gives the function that writes; the file changes when the block ends well, and only then."""
    target = path.resolve()
    try:
        mode: int | None = target.stat().st_mode
    except FileNotFoundError:
        mode = None
    if mode is not None and stat.S_ISDIR(mode):
        raise UsageError(f"--output {path} is a folder")
    if not target.parent.is_dir():
        raise UsageError(f"--output {path}: there is no folder {target.parent}")
    try:
        if mode is None or stat.S_ISREG(mode):
            with _whole(target, None if mode is None else stat.S_IMODE(mode)) as write:
                yield write
        else:
            with target.open("wb") as file:
                yield lambda chunk: durable.write_all(file.fileno(), chunk)
    except OSError as error:
        reason = error.strerror or str(error)
        raise HypError(f"{path} could not be written: {reason}", kind="output_failed") from error


@contextmanager
def _whole(target: Path, mode: int | None) -> Iterator[Callable[[bytes], None]]:
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        if mode is not None:
            os.fchmod(fd, mode)
        yield lambda chunk: durable.write_all(fd, chunk)
        durable.fsync_fd(fd)
        durable.rename(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
