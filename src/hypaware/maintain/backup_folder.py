"""The directory of a backup: its manifest, the copies in it, and its atomic creation.

A backup is laid out like a home, with `backup.json` next to `state.db`:

{version, made_at, hypaware, home, gateway_id, incarnation, next_seq, files: {path: {size, sha256}}}

The directory appears complete or not at all: it is filled as `NAME.partial-<random>` next to its target, then renamed.
The process that fills it holds a flock on the directory itself; the next run removes one whose lock is free.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from hypaware.errors import HypError, Retryable
from hypaware.home import durable_files
from hypaware.home.locks import lock_fd

MANIFEST_NAME = "backup.json"
MANIFEST_VERSION = 1
_BLOCK = 1 << 20


@dataclass(frozen=True)
class BackupFile:
    size: int
    sha256: str


@dataclass(frozen=True)
class BackupManifest:
    made_at: str
    hypaware: str
    home: str
    gateway_id: str
    incarnation: str
    next_seq: int
    files: Mapping[str, BackupFile]

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files.values())


def read_manifest(folder: Path) -> BackupManifest:
    """Read the manifest of the backup in `folder`; raise HypError if it is missing, damaged or too new."""
    path = folder / MANIFEST_NAME
    try:
        document = json.loads(path.read_bytes())
        if document["version"] != MANIFEST_VERSION:
            raise HypError(
                f"the backup {folder} was made by a newer version of hypaware (format {document['version']})",
                kind="backup_too_new",
                repair="pip install --upgrade hypaware",
            )
        files = {
            name: BackupFile(int(entry["size"]), str(entry["sha256"])) for name, entry in document.pop("files").items()
        }
        del document["version"]
        manifest = BackupManifest(**document, files=files)
    except (FileNotFoundError, NotADirectoryError):
        raise HypError(f"{folder} is not a backup: {MANIFEST_NAME} is missing", kind="not_a_backup") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HypError(f"cannot read {path}: {error}", kind="backup_damaged") from error
    for name in manifest.files:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise HypError(f"{path} lists {name}, which is outside the backup", kind="backup_damaged")
    return manifest


def refuse_existing(to: Path) -> None:
    if os.path.lexists(to) and not (to.is_dir() and not any(to.iterdir())):
        raise _exists_error(to)


def _exists_error(to: Path) -> HypError:
    return HypError(f"{to} already exists and is not an empty directory; nothing was overwritten", kind="not_empty")


def require_space(where: Path, needed: int) -> None:
    """Raise if the disk lacks the space, before anything is written."""
    while not where.exists():
        where = where.parent
    if (free := shutil.disk_usage(where).free) < needed:
        raise Retryable(
            f"not enough disk space: {needed / 1e6:,.0f} MB needed, {free / 1e6:,.0f} MB free on {where}",
            kind="no_space",
        )


@contextmanager
def staged_folder(to: Path) -> Iterator[Path]:
    """Yield a directory to fill. It is removed at the end unless it was published."""
    refuse_existing(to)
    try:
        durable_files.make_dir(to.parent)
        _remove_leftovers(to)
        while True:
            path = to.with_name(f"{to.name}.partial-{secrets.token_hex(4)}")
            path.mkdir(mode=0o700)
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            lock_fd(lock)
            # Another process may have removed the directory before we locked it.
            if path.exists():
                break
            os.close(lock)
        try:
            yield path
        finally:
            if path.exists():
                shutil.rmtree(path, ignore_errors=True)
            os.close(lock)
    except OSError as error:
        raise Retryable(f"cannot write {to}, nothing was left behind: {error}", kind="not_written") from error


def _remove_leftovers(to: Path) -> None:
    for leftover in sorted(to.parent.glob(f"{glob.escape(to.name)}.partial-*")):
        fd = os.open(leftover, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            lock_fd(fd, wait=False)
            shutil.rmtree(leftover)
        except BlockingIOError:
            raise Retryable(
                f"another process is writing {leftover}; wait until it has finished", kind="already_running"
            ) from None
        finally:
            os.close(fd)


def publish_folder(path: Path, to: Path, before: Callable[[], None], after: Callable[[], None]) -> None:
    """Make everything in the directory durable, then rename it to its target."""
    for folder, _, _ in os.walk(path, topdown=False):
        durable_files.fsync_dir(Path(folder))
    before()
    try:
        durable_files.rename_durably(path, to)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise _exists_error(to) from error
        raise Retryable(f"cannot rename {path} to {to}: {error.strerror}", kind="not_renamed") from error
    after()


@dataclass
class FileCopier:
    """Copies files into a directory. Each copy is synced, readable by its owner only, and recorded with size and hash.

    A file that was copied before and has not changed since (inode, size, modification time) is not copied again. This
    keeps the second pass of a backup short, which runs while commits are blocked.
    """

    folder: Path
    total_bytes: int
    progress: Callable[..., None]
    check_cancelled: Callable[[], None]
    files: dict[str, BackupFile] = field(default_factory=dict)
    _seen: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    _copied_bytes: int = 0

    def copy(self, path: Path, name: str, *, whole_lines: bool = False) -> BackupFile:
        """Copy a file. With `whole_lines`, leave out a last line that is still being written."""
        with open(path, "rb") as source:
            status = os.fstat(source.fileno())
            seen = (status.st_ino, status.st_size, status.st_mtime_ns)
            if self._seen.get(name) == seen:
                return self.files[name]
            digest, size = hashlib.sha256(), 0
            fd = os.open(self.target(name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(fd, "wb") as out:
                for block in _whole_lines(source) if whole_lines else _blocks(source):
                    self.check_cancelled()
                    out.write(block)
                    digest.update(block)
                    size += len(block)
                    self._copied_bytes = min(self._copied_bytes + len(block), self.total_bytes)
                    self.progress("copying", self._copied_bytes, self.total_bytes, unit="bytes")
                out.flush()
                durable_files.fsync_fd(out.fileno())
        self._seen[name], self.files[name] = seen, BackupFile(size, digest.hexdigest())
        return self.files[name]

    def copy_database(self, path: Path, name: str) -> None:
        """Copy a SQLite database as of one moment, even while it is in use."""
        target = self.target(name)
        target.touch(mode=0o600)
        with (
            closing(sqlite3.connect(path, timeout=30)) as source,
            closing(sqlite3.connect(target, timeout=30)) as copy,
        ):
            source.backup(copy)
        self.record(name)

    def record(self, name: str) -> None:
        """Sync a file of the directory and record its current size and hash."""
        path = self.folder / name
        durable_files.fsync_file(path)
        digest = hashlib.sha256()
        with open(path, "rb") as file:
            for block in _blocks(file):
                self.check_cancelled()
                digest.update(block)
        self.files[name] = BackupFile(path.stat().st_size, digest.hexdigest())

    def prune(self, below: str, names: Iterable[str]) -> None:
        """Remove copies below `below` whose originals are gone."""
        for name in {name for name in self.files if name.startswith(below)} - set(names):
            (self.folder / name).unlink()
            del self.files[name]

    def target(self, name: str) -> Path:
        target = self.folder / name
        durable_files.make_dir(target.parent)
        return target


def _blocks(source: BinaryIO) -> Iterator[bytes]:
    return iter(lambda: source.read(_BLOCK), b"")


def _whole_lines(source: BinaryIO) -> Iterator[bytes]:
    partial = b""
    for block in _blocks(source):
        whole, newline, rest = block.rpartition(b"\n")
        if newline:
            yield partial + whole + newline
            partial = rest
        else:
            partial += block
