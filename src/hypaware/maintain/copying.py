"""Copies of files into a folder: each is synced, for its owner only, and its size and hash are known.

A file that was copied before and has not changed since (inode, size, time) is not copied again, so that what was done
at leisure need not be done again in a hurry.
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
        into: Path,
        check_cancelled: Callable[[], None],
        on_bytes: Callable[[int], None] = lambda done: None,
    ) -> None:
        self.into = into
        self.kept: dict[str, Kept] = {}
        self._seen: dict[str, _Seen] = {}
        self._check_cancelled = check_cancelled
        self._on_bytes = on_bytes

    def copy(self, path: Path, name: str, *, whole_lines: bool = False) -> Kept:
        """`whole_lines` leaves out what follows the last newline: its writer is in the middle of it."""
        with open(path, "rb") as source:
            found = os.fstat(source.fileno())
            seen = (found.st_ino, found.st_size, found.st_mtime_ns)
            if self._seen.get(name) == seen:
                return self.kept[name]
            held, size = hashlib.sha256(), 0
            fd = os.open(self._place(name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(fd, "wb") as out:
                for block in _whole_lines(source) if whole_lines else _blocks(source):
                    self._check_cancelled()
                    out.write(block)
                    held.update(block)
                    size += len(block)
                    self._on_bytes(len(block))
                out.flush()
                durable.fsync_fd(out.fileno())
        self._seen[name], self.kept[name] = seen, Kept(size, held.hexdigest())
        return self.kept[name]

    def write(self, name: str, data: bytes) -> None:
        durable.write_file(self._place(name), data)
        self.note(name)

    def database(self, path: Path, name: str) -> None:
        """As it stands at one moment, whoever uses it."""
        target = self._place(name)
        target.touch(mode=0o600)
        with (
            closing(sqlite3.connect(path, timeout=30)) as source,
            closing(sqlite3.connect(target, timeout=30)) as copy,
        ):
            source.backup(copy)
        self.note(name)

    def note(self, name: str) -> Kept:
        """Takes a file of the folder in as it is now, synced."""
        path = self.into / name
        durable.fsync_file(path)
        held = hashlib.sha256()
        with open(path, "rb") as file:
            for block in _blocks(file):
                self._check_cancelled()
                held.update(block)
        self.kept[name] = Kept(path.stat().st_size, held.hexdigest())
        return self.kept[name]

    def keep_only(self, below: str, names: Iterable[str]) -> None:
        """What was copied there before, and is gone now, goes here as well."""
        for name in {name for name in self.kept if name.startswith(below)} - set(names):
            (self.into / name).unlink()
            del self.kept[name]

    def _place(self, name: str) -> Path:
        target = self.into / name
        durable.make_dir(target.parent)
        return target


def _blocks(source: BinaryIO) -> Iterator[bytes]:
    while block := source.read(_BLOCK):
        yield block


def _whole_lines(source: BinaryIO) -> Iterator[bytes]:
    begun = b""
    for block in _blocks(source):
        whole, newline, rest = block.rpartition(b"\n")
        if newline:
            yield begun + whole + newline
            begun = rest
        else:
            begun += block
