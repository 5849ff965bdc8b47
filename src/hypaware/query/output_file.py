"""Write the result of a query to a file, all or nothing.

The result goes to a hidden temporary file in the same folder, which replaces the target at the end. A device or a named
pipe is written directly. Of a symbolic link, the target is replaced.
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
    """Yield a write function. The file is replaced only if the block ends without an error."""
    target = path.resolve()
    try:
        mode: int | None = target.stat().st_mode
    except FileNotFoundError:
        mode = None
    if mode is not None and stat.S_ISDIR(mode):
        raise UsageError(f"--output {path} is a folder")
    if not target.parent.is_dir():
        raise UsageError(f"--output {path}: folder {target.parent} does not exist")
    try:
        if mode is None or stat.S_ISREG(mode):
            with _replace_atomically(target, None if mode is None else stat.S_IMODE(mode)) as write:
                yield write
        else:
            with target.open("wb") as file:
                yield lambda chunk: durable.write_all(file.fileno(), chunk)
    except OSError as error:
        reason = error.strerror or str(error)
        raise HypError(f"cannot write {path}: {reason}", kind="output_failed") from error


@contextmanager
def _replace_atomically(target: Path, mode: int | None) -> Iterator[Callable[[bytes], None]]:
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
