"""A folder on a local disk as a destination.

An object is written under a temporary name in the same folder, fsynced and renamed. A manifest is hard-linked to its
name, which fails if it exists. The folder is fsynced after both, and each folder's own entry when it is first used,
because the process that created it may have died before doing so. A power cut therefore leaves no manifest, or a
manifest with a complete object.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TypeVar

from hypaware import faults
from hypaware.export.sink import DestinationDenied, DestinationUnreachable
from hypaware.export.sinks.blob import FolderLocation
from hypaware.home import durable_files
from hypaware.home.locks import lock_fd

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.tmp", re.DOTALL)
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_before_rename = faults.crash_point("export.blob-file.before-rename", "an object is durable under a temporary name")
_before_link = faults.crash_point("export.blob-file.before-link", "a manifest is durable under a temporary name")
_after_link = faults.crash_point("export.blob-file.after-link", "a manifest is linked, its folder is not fsynced")
T = TypeVar("T")
_NO_PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL = (errno.ENOSPC, errno.EDQUOT)


def _open_folder(root: Path) -> None:
    """Create the folder if it is missing, but not its parents: they may be the mount point of a missing disk."""
    if not root.parent.is_dir():
        raise DestinationDenied(
            f"cannot create {root}: the folder {root.parent} does not exist. Is the disk mounted?",
            kind="no_such_folder",
            repair=f"mkdir -p {quote(str(root))}",
        )
    with contextlib.suppress(FileExistsError):
        root.mkdir(mode=0o700)
    if not root.is_dir():
        raise DestinationDenied(f"{root} is not a folder", kind="not_a_folder", repair="hyp config show")
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    # A folder below an unreadable parent was not created here.
    with contextlib.suppress(PermissionError):
        durable_files.fsync_dir(root.parent)


class FolderStore:
    def __init__(self, location: FolderLocation) -> None:
        self._root = location.path
        self._prepared: set[Path] = set()

    async def open(self) -> None:
        await self._run(_open_folder, self._root)

    async def write(self, key: str, data: memoryview, content_type: str) -> str:
        path = self._root / key
        with self._translate_errors(path), TemporaryFile(path) as temporary:
            await _in_thread(self._stage, temporary, data)
            _before_rename()
            return await _in_thread(temporary.rename)

    async def create(self, key: str, data: bytes, content_type: str) -> bool:
        path = self._root / key
        with self._translate_errors(path), TemporaryFile(path) as temporary:
            await _in_thread(self._stage, temporary, memoryview(data))
            _before_link()
            created = await _in_thread(temporary.link)
            if created:
                _after_link()
            # Even if it existed: its writer may have died before the fsync.
            await _in_thread(temporary.clean_up)
            return created

    def _stage(self, temporary: TemporaryFile, data: memoryview) -> None:
        self._prepare(temporary.target.parent)
        temporary.write(data)

    async def read(self, key: str) -> bytes | None:
        return await self._run(_read_file, self._root / key)

    async def version(self, key: str) -> str | None:
        return await self._run(_file_version, self._root / key)

    async def remove(self, key: str) -> None:
        await self._run(durable_files.remove_durably, self._root / key)

    async def names(self, folder: str, after: str) -> AsyncIterator[str]:
        for name in await self._run(self._list, self._root / folder):
            if name > after:
                yield name

    def _list(self, folder: Path) -> list[str]:
        """Return the names in a folder, fsynced: a name that the caller relies on must survive a power cut."""
        try:
            names = list_names(folder)
            durable_files.fsync_dir(folder)
            return names
        except FileNotFoundError:
            # An unmounted disk has not lost its files, so this is not an empty folder.
            if not self._root.is_dir():
                raise
            return []

    def _prepare(self, folder: Path) -> None:
        if folder in self._prepared:
            return
        path = self._root
        for name in folder.relative_to(self._root).parts:
            path = path / name
            with contextlib.suppress(FileExistsError):
                path.mkdir()
            if not stat.S_ISDIR(path.lstat().st_mode):
                raise DestinationDenied(
                    f"{path} is a link or a file, not a folder; rows are written only below the destination",
                    kind="not_a_folder",
                    repair=f"ls -ld {quote(str(path))}",
                )
            durable_files.fsync_dir(path.parent)
        list_names(folder)
        self._prepared.add(folder)

    async def _run(self, work: Callable[[Path], T], path: Path) -> T:
        with self._translate_errors(path):
            return await _in_thread(work, path)

    @contextmanager
    def _translate_errors(self, path: Path) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            self._prepared.clear()
            reason = error.strerror if self._root.is_dir() else f"{self._root} is missing. Is the disk mounted?"
            raise DestinationUnreachable(f"cannot use {path}: {reason}") from error
        except OSError as error:
            reason, root = f"{path}: {error.strerror or error}", quote(str(self._root))
            if error.errno in _NO_PERMISSION:
                reason = f"{reason}. The folder must be writable"
                raise DestinationDenied(reason, kind="no_permission", repair=f"ls -ld {root}") from error
            if error.errno in _FULL:
                reason = f"{reason}. Free some space; no rows are lost"
                raise DestinationDenied(reason, kind="disk_full", repair=f"df -h {root}") from error
            raise DestinationUnreachable(reason) from error


def _read_file(path: Path) -> bytes | None:
    try:
        with durable_files.open_regular_file(path) as file:
            return file.read()
    except FileNotFoundError:
        return None
    except durable_files.NotRegularFile as error:
        raise DestinationDenied(str(error), kind="not_a_file", repair=f"ls -ld {quote(str(path))}") from None


def _file_version(path: Path) -> str | None:
    try:
        return stat_version(path.lstat())
    except FileNotFoundError:
        return None


async def _in_thread(work: Callable[..., T], *args: object) -> T:
    """Run the work on a thread. A cancelled call waits for the thread to end, so that it cannot overlap a retry."""
    running = asyncio.get_running_loop().run_in_executor(None, work, *args)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        running.exception()
        raise


class TemporaryFile:
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
            lock_fd(self._fd, wait=False)
        durable_files.write_all(self._fd, data)
        durable_files.fsync_fd(self._fd)

    def rename(self) -> str:
        durable_files.rename_durably(self._path, self.target)
        assert self._fd is not None
        return stat_version(os.fstat(self._fd))

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
        durable_files.fsync_dir(self.target.parent)

    def __enter__(self) -> TemporaryFile:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
            os.close(self._fd)


def list_names(folder: Path) -> list[str]:
    """Return the sorted names in a folder, without temporary files. Removes those whose writer is dead."""
    names = []
    for path in folder.iterdir():
        if not _TEMPORARY.fullmatch(path.name):
            names.append(path.name)
            continue
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                lock_fd(fd, wait=False)
                path.unlink(missing_ok=True)
            finally:
                os.close(fd)
    return sorted(names)


def stat_version(found: os.stat_result) -> str:
    """Return a text that changes when the file is replaced."""
    return f"{found.st_ino}-{found.st_mtime_ns}-{found.st_size}"
