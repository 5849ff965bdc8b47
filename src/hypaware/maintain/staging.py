"""A folder that appears whole or not at all: it is filled as `NAME.partial-<random>` beside its place, then renamed.

Whoever fills one holds a lock on it (flock on the folder itself). So what a killed process left is known by its free
lock, and goes with the next one; beside a process that is still at work nobody begins.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hypaware import durable
from hypaware.errors import HypError, Retryable


@contextmanager
def staged(to: Path) -> Iterator[Path]:
    """The folder to fill; gone in the end, unless it was published."""
    refuse_taken(to)
    try:
        durable.make_dir(to.parent)
        _sweep(to)
        path, lock = _claim(to)
        try:
            yield path
        finally:
            if path.exists():
                shutil.rmtree(path, ignore_errors=True)
            os.close(lock)
    except OSError as error:
        raise Retryable(f"{to} could not be made, and nothing of it is there: {error}", kind="not_written") from error


def publish(path: Path, to: Path, before: Callable[[], None], after: Callable[[], None]) -> None:
    """Everything in it becomes durable, then it gets its name."""
    for folder, _, _ in os.walk(path, topdown=False):
        durable.fsync_dir(Path(folder))
    before()
    try:
        durable.rename(path, to)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise _taken(to) from error
        raise Retryable(f"{path} could not get its name {to}: {error.strerror}", kind="not_renamed") from error
    after()


def refuse_taken(to: Path) -> None:
    if to.is_dir() and not any(to.iterdir()):
        return
    if os.path.lexists(to):
        raise _taken(to)


def require_space(where: Path, needed: int) -> None:
    """Raises before anything is written, rather than half way through."""
    while not where.exists():
        where = where.parent
    if (free := shutil.disk_usage(where).free) < needed:
        raise Retryable(
            f"{needed / 1e6:,.0f} MB are needed, and {where} has {free / 1e6:,.0f} MB free", kind="no_space"
        )


def _taken(to: Path) -> HypError:
    return HypError(f"{to} is there already and is not an empty folder: nothing is ever overwritten", kind="not_empty")


def _claim(to: Path) -> tuple[Path, int]:
    while True:
        path = to.with_name(f"{to.name}.partial-{secrets.token_hex(4)}")
        path.mkdir(mode=0o700)
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Somebody who swept may have been quicker than our lock.
        if path.exists():
            return path, lock
        os.close(lock)


def _sweep(to: Path) -> None:
    for left in sorted(to.parent.glob(f"{_literal(to.name)}.partial-*")):
        fd = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left)
        except BlockingIOError:
            raise Retryable(f"another process is at work on {left}: wait for it", kind="already_running") from None
        finally:
            os.close(fd)


def _literal(name: str) -> str:
    return "".join(f"[{sign}]" if sign in "*?[" else sign for sign in name)
