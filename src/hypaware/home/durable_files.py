"""Durable file operations: the result of each call survives a power cut once the call has returned.

A file is durable after an fsync of its bytes. Its name is durable after an fsync of its folder. `fsync` is never
retried after an error: the kernel may have dropped the pages, and a second call would report success over lost bytes.

Also rejects a network file system for a home, because locks and fsync are unreliable there, and opens files of other
programs only if they are regular files, without blocking on a pipe.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from hypaware.errors import NotReady

NETWORK_FILE_SYSTEMS = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre", "9p", "fuse.sshfs", "fuse.rclone",
    "davfs", "webdav", "afpfs", "fuse.s3fs", "beegfs", "gpfs",
}  # fmt: skip

if sys.platform == "darwin":
    import fcntl

    def fsync_fd(fd: int) -> None:
        """Flush the drive's cache too. On macOS only F_FULLFSYNC does that; fsync does not."""
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)

else:

    def fsync_fd(fd: int) -> None:
        os.fsync(fd)


def fsync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        fsync_fd(fd)
    finally:
        os.close(fd)


def fsync_dir(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fsync_fd(fd)
    finally:
        os.close(fd)


def rename_durably(old: Path, new: Path) -> None:
    """Rename a file whose bytes are already durable, and make the rename durable."""
    old.rename(new)
    fsync_dir(new.parent)
    if old.parent != new.parent:
        fsync_dir(old.parent)


def remove_durably(path: Path) -> None:
    path.unlink(missing_ok=True)
    fsync_dir(path.parent)


def write_atomic(path: Path, data: bytes, mode: int = 0o600, *, durable: bool = True) -> None:
    """Replace a file atomically: readers see the old bytes or the new ones, even after a power cut."""
    with replace_atomically(path, mode, durable=durable) as fd:
        write_all(fd, data)


@contextlib.contextmanager
def replace_atomically(
    path: Path, mode: int = 0o600, *, durable: bool = True, before_rename: Callable[[], None] | None = None
) -> Iterator[int]:
    """Yield the descriptor of a temporary file, which replaces the file at the path when the context ends.

    The temporary file is removed if the context or `before_rename` raises. Without `durable`, the replacement is
    atomic for readers, but a power cut may undo it or leave an empty file.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        try:
            yield fd
            if durable:
                fsync_fd(fd)
        finally:
            os.close(fd)
        if before_rename is not None:
            before_rename()
        if durable:
            rename_durably(temporary, path)
        else:
            temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def create_atomic(path: Path, data: bytes, mode: int = 0o600, *, before_link: Callable[[], None] | None = None) -> None:
    """Create a file that readers see whole or not at all. Raise FileExistsError, and change nothing, if it exists."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        try:
            write_all(fd, data)
            fsync_fd(fd)
        finally:
            os.close(fd)
        if before_link is not None:
            before_link()
        # Unlike a rename, a link never replaces a file.
        os.link(temporary, path, follow_symlinks=False)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    fsync_dir(path.parent)


def write_all(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def make_dir(path: Path, mode: int = 0o700) -> None:
    """Create a folder and its missing parents, each durable in the folder above it."""
    if path.is_dir():
        return
    make_dir(path.parent, mode)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=mode)
    fsync_dir(path.parent)


def reject_network_file_system(root: Path) -> None:
    if (kind := file_system_type(root)) in NETWORK_FILE_SYSTEMS:
        raise NotReady(
            f"{root} is on a network file system ({kind}), where locks and fsync are unreliable",
            kind="network_file_system",
            repair="export HYP_HOME=<a folder on a local disk>",
        )


def file_system_type(path: Path) -> str | None:
    """Return the type of the mount that holds the path, or None if the platform does not report it."""
    mounts = Path("/proc/self/mounts")
    if sys.platform != "linux" or not mounts.is_file():
        return None
    longest, kind = "", None
    for line in mounts.read_text().splitlines():
        _, mount_point, mount_kind, *_ = line.split(" ")
        mount_point = mount_point.replace("\\040", " ")
        if path.resolve().is_relative_to(mount_point) and len(mount_point) >= len(longest):
            longest, kind = mount_point, mount_kind
    return kind


class NotRegularFile(OSError):
    """The path is a pipe, a socket, a device or a folder, not a regular file."""


def open_regular_file(path: Path) -> BinaryIO:
    # Without O_NONBLOCK, opening a named pipe would block until a writer appears.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise NotRegularFile(f"{path} is not a regular file")
        return open(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def require_private_folder(folder: Path, purpose: str, kind: str) -> None:
    """Raise NotReady unless only this user can use the folder, which is in a place where everyone can create one."""
    status = folder.lstat()
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077:
        return
    raise NotReady(
        f"{folder}, the folder of {purpose}, is not private to you; remove it", kind=kind, repair=f"ls -ld {folder}"
    )
