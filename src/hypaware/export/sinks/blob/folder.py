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
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TypeVar

from hypaware import durable, faults, regular
from hypaware.export.sink import Denied, Unreachable
from hypaware.export.sinks.blob.address import FolderPlace
from hypaware.export.sinks.blob.temporary import Temporary, on_its_way, swept, told_apart

_before_rename = faults.point("export.blob-file.before-rename", "an object is durable under a temporary name")
_before_link = faults.point("export.blob-file.before-link", "a manifest is durable under a temporary name")
_after_link = faults.point("export.blob-file.after-link", "a manifest is linked, its folder is not fsynced")

T = TypeVar("T")

_NO_PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Folder:
    def __init__(self, location: FolderPlace) -> None:
        self._root = location.path
        self._prepared: set[Path] = set()

    async def open(self) -> None:
        with self._translate_errors(self._root):
            await _in_thread(self._open)

    def _open(self) -> None:
        """Create the folder if it is missing, but not its parents: they may be the mount point of a missing disk."""
        if not self._root.parent.is_dir():
            raise Denied(
                f"cannot create {self._root}: the folder {self._root.parent} does not exist. Is the disk mounted?",
                kind="no_such_folder",
                repair=f"mkdir -p {quote(str(self._root))}",
            )
        with contextlib.suppress(FileExistsError):
            self._root.mkdir(mode=0o700)
        if not self._root.is_dir():
            raise Denied(f"{self._root} is not a folder", kind="not_a_folder", repair="hyp config show")
        if not os.access(self._root, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        # A folder below an unreadable parent was not created here.
        with contextlib.suppress(PermissionError):
            durable.fsync_dir(self._root.parent)

    async def write(self, key: str, data: memoryview, content_type: str) -> str:
        path = self._root / key
        with self._translate_errors(path), on_its_way(path) as temporary:
            await _in_thread(self._stage, temporary, data)
            _before_rename()
            return await _in_thread(temporary.rename)

    async def create(self, key: str, data: bytes, content_type: str) -> bool:
        path = self._root / key
        with self._translate_errors(path), on_its_way(path) as temporary:
            await _in_thread(self._stage, temporary, memoryview(data))
            _before_link()
            created = await _in_thread(temporary.link)
            if created:
                _after_link()
            # Even if it existed: its writer may have died before the fsync.
            await _in_thread(temporary.clean_up)
            return created

    def _stage(self, temporary: Temporary, data: memoryview) -> None:
        self._prepare(temporary.target.parent)
        temporary.write(data)

    async def read(self, key: str) -> bytes | None:
        path = self._root / key
        with self._translate_errors(path):
            return await _in_thread(_read, path)

    async def version(self, key: str) -> str | None:
        path = self._root / key
        with self._translate_errors(path):
            return await _in_thread(_version, path)

    async def remove(self, key: str) -> None:
        path = self._root / key
        with self._translate_errors(path):
            await _in_thread(durable.remove, path)

    async def names(self, folder: str, after: str) -> AsyncIterator[str]:
        path = self._root / folder
        with self._translate_errors(path):
            found = await _in_thread(self._list, path)
        for name in found:
            if name > after:
                yield name

    def _list(self, folder: Path) -> list[str]:
        """Return the names in a folder, fsynced: a name that the caller relies on must survive a power cut."""
        try:
            names = swept(folder)
            durable.fsync_dir(folder)
        except FileNotFoundError:
            # An unmounted disk has not lost its files, so this is not an empty folder.
            if not self._root.is_dir():
                raise
            return []
        return names

    def _prepare(self, folder: Path) -> None:
        if folder in self._prepared:
            return
        path = self._root
        for name in folder.relative_to(self._root).parts:
            path = path / name
            with contextlib.suppress(FileExistsError):
                path.mkdir()
            if not stat.S_ISDIR(path.lstat().st_mode):
                raise Denied(
                    f"{path} is a link or a file, not a folder; rows are written only below the destination",
                    kind="not_a_folder",
                    repair=f"ls -ld {quote(str(path))}",
                )
            durable.fsync_dir(path.parent)
        swept(folder)
        self._prepared.add(folder)

    @contextmanager
    def _translate_errors(self, path: Path) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            self._prepared.clear()
            reason = error.strerror if self._root.is_dir() else f"{self._root} is missing. Is the disk mounted?"
            raise Unreachable(f"cannot use {path}: {reason}") from error
        except OSError as error:
            reason = f"{path}: {error.strerror or error}"
            if error.errno in _NO_PERMISSION:
                repair = f"ls -ld {quote(str(self._root))}"
                raise Denied(f"{reason}. The folder must be writable", kind="no_permission", repair=repair) from error
            if error.errno in _FULL:
                repair = f"df -h {quote(str(self._root))}"
                raise Denied(f"{reason}. Free some space; no rows are lost", kind="disk_full", repair=repair) from error
            raise Unreachable(reason) from error


def _read(path: Path) -> bytes | None:
    try:
        with regular.open_regular(path) as file:
            return file.read()
    except FileNotFoundError:
        return None
    except regular.NotRegular as error:
        raise Denied(str(error), kind="not_a_file", repair=f"ls -ld {quote(str(path))}") from None


def _version(path: Path) -> str | None:
    try:
        return told_apart(path.lstat())
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
