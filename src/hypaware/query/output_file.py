"""Write the result of a query to a file, all or nothing.

The result goes to a hidden temporary file in the same folder, which replaces the target at the end. A device or a named
pipe is written directly. Of a symbolic link, the target is replaced.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from hypaware.errors import HypError, UsageError
from hypaware.home import durable_files


@contextmanager
def open_output(path: Path) -> Iterator[Callable[[bytes], None]]:
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
            with durable_files.replace_atomically(target, 0o666) as fd:
                if mode is not None:
                    os.fchmod(fd, stat.S_IMODE(mode))
                yield partial(durable_files.write_all, fd)
        else:
            with target.open("wb") as file:
                yield lambda chunk: durable_files.write_all(file.fileno(), chunk)
    except OSError as error:
        reason = error.strerror or str(error)
        raise HypError(f"cannot write {path}: {reason}", kind="output_failed") from error
