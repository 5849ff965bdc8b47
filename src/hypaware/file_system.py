"""Rejects network file systems for a home, because locks and fsync are unreliable there."""

from __future__ import annotations

import sys
from pathlib import Path

from hypaware.errors import NotReady

_NETWORK = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre", "9p", "fuse.sshfs", "fuse.rclone",
    "davfs", "webdav", "afpfs", "fuse.s3fs", "beegfs", "gpfs",
}  # fmt: skip


def refuse_network(root: Path) -> None:
    if (kind := kind_of(root)) in _NETWORK:
        raise NotReady(
            f"{root} is on a network file system ({kind}), where locks and fsync are unreliable",
            kind="network_file_system",
            repair="export HYP_HOME=<a folder on a local disk>",
        )


def kind_of(path: Path) -> str | None:
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
