"""Records the order of durable file operations, by wrapping `hypaware.home.durable_files` and the calls it makes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hypaware.home import durable_files


@contextmanager
def disk_calls(below: Path) -> Iterator[list[str]]:
    """Record operations on files below the folder: `write a`, `sync a`, `sync dir/`, `rename a -> b`, `remove a`."""
    calls: list[str] = []
    write, fsync_fd, rename, unlink = os.write, durable_files.fsync_fd, Path.rename, Path.unlink

    def name(path: Path) -> str:
        return str(path.relative_to(below))

    def named(fd: int) -> str:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        return f"{name(path)}/" if stat.S_ISDIR(os.fstat(fd).st_mode) else name(path)

    def recorded_write(fd: int, data: bytes) -> int:
        calls.append(f"write {named(fd)}")
        return write(fd, data)

    def recorded_sync(fd: int) -> None:
        calls.append(f"sync {named(fd)}")
        fsync_fd(fd)

    def recorded_rename(old: Path, new: Path) -> Path:
        calls.append(f"rename {name(old)} -> {name(Path(new))}")
        return rename(old, new)

    def recorded_unlink(path: Path, missing_ok: bool = False) -> None:
        calls.append(f"remove {name(path)}")
        unlink(path, missing_ok)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "write", recorded_write)
        patched.setattr(durable_files, "fsync_fd", recorded_sync)
        patched.setattr(Path, "rename", recorded_rename)
        patched.setattr(Path, "unlink", recorded_unlink)
        yield calls
