"""What a home must not lie on: network file systems, where locks and syncs cannot be trusted."""

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
            f"{root} lies on a network file system ({kind}), where locks and syncs cannot be trusted",
            kind="network_file_system",
            repair="export HYP_HOME=<a folder on a local disk>",
        )


def kind_of(path: Path) -> str | None:
    """The type of the mount that holds the path; None where the platform does not tell."""
    mounts = Path("/proc/self/mounts")
    if sys.platform != "linux" or not mounts.is_file():
        return None
    best, kind = "", None
    for line in mounts.read_text().splitlines():
        _, point, found, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        if path.resolve().is_relative_to(point) and len(point) >= len(best):
            best, kind = point, found
    return kind
