"""The file system of a home, and files of other programs.

A network file system is rejected for a home, because locks and fsync are unreliable there. Files of other programs are
opened only if they are regular files, without blocking on a pipe.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import BinaryIO

from hypaware.errors import NotReady

_NETWORK = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre", "9p", "fuse.sshfs", "fuse.rclone",
    "davfs", "webdav", "afpfs", "fuse.s3fs", "beegfs", "gpfs",
}  # fmt: skip


def reject_network_file_system(root: Path) -> None:
    if (kind := file_system_type(root)) in _NETWORK:
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
