"""Copies of files into a directory. Each copy is synced, readable by its owner only, and recorded with size and hash.

A file that was copied before and has not changed since (inode, size, modification time) is not copied again. This keeps
the second pass short, which runs while commits are blocked.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from hypaware import durable
from hypaware.maintain.contents import Kept

_BLOCK = 1 << 20
_Seen = tuple[int, int, int]


class Copier:
    def __init__(
        self,
        folder: Path,
        check_cancelled: Callable[[], None],
        on_bytes: Callable[[int], None] = lambda done: None,
    ) -> None:
        self.folder = folder
        self.files: dict[str, Kept] = {}
        self._seen: dict[str, _Seen] = {}
        self._check_cancelled = check_cancelled
        self._on_bytes = on_bytes

    def copy(self, path: Path, name: str, *, whole_lines: bool = False) -> Kept:
        """Copy a file. With `whole_lines`, leave out a last line that is still being written."""
        with open(path, "rb") as source:
            status = os.fstat(source.fileno())
            seen = (status.st_ino, status.st_size, status.st_mtime_ns)
            if self._seen.get(name) == seen:
                return self.files[name]
            digest, size = hashlib.sha256(), 0
            fd = os.open(self._target(name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(fd, "wb") as out:
                for block in _whole_lines(source) if whole_lines else _blocks(source):
                    self._check_cancelled()
                    out.write(block)
                    digest.update(block)
                    size += len(block)
                    self._on_bytes(len(block))
                out.flush()
                durable.fsync_fd(out.fileno())
        self._seen[name], self.files[name] = seen, Kept(size, digest.hexdigest())
        return self.files[name]

    def write(self, name: str, data: bytes) -> None:
        durable.write_file(self._target(name), data)
        self.record(name)

    def copy_database(self, path: Path, name: str) -> None:
        """Copy a SQLite database as of one moment, even while it is in use."""
        target = self._target(name)
        target.touch(mode=0o600)
        with (
            closing(sqlite3.connect(path, timeout=30)) as source,
            closing(sqlite3.connect(target, timeout=30)) as copy,
        ):
            source.backup(copy)
        self.record(name)

    def record(self, name: str) -> Kept:
        """Sync a file of the directory and record its current size and hash."""
        path = self.folder / name
        durable.fsync_file(path)
        digest = hashlib.sha256()
        with open(path, "rb") as file:
            for block in _blocks(file):
                self._check_cancelled()
                digest.update(block)
        self.files[name] = Kept(path.stat().st_size, digest.hexdigest())
        return self.files[name]

    def prune(self, below: str, names: Iterable[str]) -> None:
        """Remove copies below `below` whose originals are gone."""
        for name in {name for name in self.files if name.startswith(below)} - set(names):
            (self.folder / name).unlink()
            del self.files[name]

    def _target(self, name: str) -> Path:
        target = self.folder / name
        durable.make_dir(target.parent)
        return target


def _blocks(source: BinaryIO) -> Iterator[bytes]:
    while block := source.read(_BLOCK):
        yield block


def _whole_lines(source: BinaryIO) -> Iterator[bytes]:
    partial = b""
    for block in _blocks(source):
        whole, newline, rest = block.rpartition(b"\n")
        if newline:
            yield partial + whole + newline
            partial = rest
        else:
            partial += block
