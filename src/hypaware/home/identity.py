"""The identity of a home, which shows whether the home was moved or copied before anything in it is touched.

A home is unchanged if its path, its inode and its machine are the same. With the same inode at another path it was
moved. With another inode, or on another machine, it is a copy. A home gets a new `incarnation` when its history may
have forked (it was copied or rolled back, or its state was rebuilt), so that deliveries of the two are never confused.

The homes of a shared lake have one identity. Each of them is a *member*: the gateway id of its rows is that of the
lake, a dot, and the key of the member, a hash of its machine and its path.

@ref homes#identity
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import secrets
import socket
import subprocess
import sys
import uuid
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

# FS_IOC_GETVERSION: the generation of an inode number, which NFS servers use to detect stale handles.
_GET_VERSION = 0x80087601
# Between the gateway id of a shared lake and the key of a member. Ids that we make up have none.
_OF_MEMBER = "."
_MEMBER_KEY_DIGITS = 12
_MEMBER = rf"{re.escape(_OF_MEMBER)}[0-9a-f]{{{_MEMBER_KEY_DIGITS}}}"
# The inode recorded in a backup, so that a home restored from it always counts as a copy.
NO_INODE = 0


class HomeLocation(Enum):
    HERE = "here"
    MOVED = "moved"
    COPIED = "copied"


@dataclass(frozen=True)
class Identity:
    gateway_id: str
    incarnation: str
    parents: tuple[str, ...]
    """Earlier incarnations, oldest first."""
    machine_id: str
    home_path: str
    home_inode: int
    forks: tuple[int, ...] = ()
    """The last sequence of each earlier incarnation. Rows up to it are delivered under that incarnation."""
    home_born: int | None = None
    """Distinguishes the folder from an earlier one with the same inode. None if the file system does not provide it."""

    def next_incarnation(self, through: int) -> Identity:
        """Return the same home as a new incarnation, whose history may have forked after this sequence."""
        parents, forks = (*self.parents, self.incarnation), (*self.forks, through)
        return replace(self, incarnation=new_incarnation(), parents=parents, forks=forks)

    def at(self, root: Path) -> Identity:
        """Return the same home at another path."""
        return replace(self, machine_id=machine_id(), home_path=str(root.resolve()), **_folder_identity(root))

    def at_location_of(self, other: Identity) -> Identity:
        """Return the same home at the path of the other."""
        location = {name: getattr(other, name) for name in ("machine_id", "home_path", "home_inode", "home_born")}
        return replace(self, **location)

    @property
    def is_shared(self) -> bool:
        """Whether this is the identity of a shared lake, which belongs to no folder."""
        return not self.home_path

    def gateway_of_rows(self, root: Path) -> str:
        """Return the gateway id of rows that are recorded in this home."""
        return f"{self.gateway_id}{_OF_MEMBER}{member_key(root)}" if self.is_shared else self.gateway_id

    def as_shared(self) -> Identity:
        return replace(self, machine_id="", home_path="", home_inode=NO_INODE, home_born=None)

    def locate(self, root: Path) -> HomeLocation:
        """Return whether the folder is this home, moved or not, or a copy of it."""
        if self.is_shared:
            return HomeLocation.HERE
        if self.machine_id != machine_id() or self.home_inode != root.stat().st_ino:
            return HomeLocation.COPIED
        if self.home_born is not None and inode_generation(root) not in (None, self.home_born):
            return HomeLocation.COPIED
        return HomeLocation.HERE if self.home_path == str(root.resolve()) else HomeLocation.MOVED

    def without_parents(self) -> Identity:
        """Return the same home with all its sequences under the current incarnation."""
        return replace(self, parents=(), forks=())

    def descends_from(self, other: Identity) -> bool:
        """Return whether this is the same incarnation as the other one or a later one of the same home."""
        return other.incarnation in (self.incarnation, *self.parents)

    def incarnation_ranges(self) -> list[IncarnationRange]:
        """Return the incarnations with the sequences that belong to each, oldest first."""
        ranges, after = [], 0
        for incarnation, through in zip(self.parents, self.forks, strict=True):
            ranges.append(IncarnationRange(incarnation, after, max(after, through)))
            after = max(after, through)
        return [*ranges, IncarnationRange(self.incarnation, after, None)]

    def precedes(self, incarnation: str, seq: int) -> bool:
        """Return whether the incarnation owns only sequences above this one."""
        return any(each.incarnation == incarnation and seq < each.after for each in self.incarnation_ranges())


@dataclass(frozen=True)
class IncarnationRange:
    """The sequences (after, through] of one incarnation. The current incarnation has no end."""

    incarnation: str
    after: int
    through: int | None


def new_identity(
    root: Path, gateway_id: str | None = None, parents: tuple[str, ...] = (), forks: tuple[int, ...] = ()
) -> Identity:
    return Identity(
        gateway_id=gateway_id or f"gw-{secrets.token_hex(8)}",
        incarnation=new_incarnation(),
        parents=parents,
        machine_id=machine_id(),
        home_path=str(root.resolve()),
        forks=forks,
        **_folder_identity(root),
    )


def _folder_identity(root: Path) -> dict[str, Any]:
    return {"home_inode": root.stat().st_ino, "home_born": inode_generation(root)}


def inode_generation(folder: Path) -> int | None:
    """Return a value that differs between two folders that had the same inode, because file systems reuse inodes."""
    if (birth := getattr(folder.stat(), "st_birthtime_ns", None)) is not None:
        return int(birth)
    if sys.platform != "linux":
        return None
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return int.from_bytes(fcntl.ioctl(fd, _GET_VERSION, bytes(8))[:4], sys.byteorder)
    except OSError:
        return None
    finally:
        os.close(fd)


def new_incarnation() -> str:
    return secrets.token_hex(16)


def parse_identity(values: dict[str, object]) -> Identity:
    known = {name: values[name] for name in Identity.__dataclass_fields__ if name not in ("forks", "home_born")}
    known["home_born"] = values.get("home_born")
    parents: tuple[str, ...] = tuple(values["parents"])  # type: ignore[arg-type]
    return Identity(**{**known, "parents": parents, "forks": pad_forks(values.get("forks", ()), parents)})  # type: ignore[arg-type]


def pad_forks(forks: Any, parents: tuple[str, ...]) -> tuple[int, ...]:
    """Return one fork for each parent: 0, an empty range, for parents whose last sequence was not recorded."""
    held = [int(fork) for fork in forks][-len(parents) :] if parents else []
    return (*[0] * (len(parents) - len(held)), *held)


def is_own_gateway(gateway_id: str | None, own: str) -> bool:
    """Return whether rows of a gateway belong to the home with the gateway id `own`, or to a member of its lake."""
    if gateway_id is None or not gateway_id.startswith(own):
        return False
    return gateway_id == own or re.fullmatch(_MEMBER, gateway_id[len(own) :]) is not None


def is_member_id(gateway_id: str) -> bool:
    """Return whether the id has the form of a member's. No sender may claim one: its rows count as the lake's."""
    return re.fullmatch(f".*{_MEMBER}", gateway_id, re.DOTALL) is not None


def member_key(root: Path) -> str:
    """Return the key of a home among those that share its lake."""
    import hashlib  # loads OpenSSL, and few commands need it

    named = f"{machine_id()}\0{root.resolve()}".encode("utf-8", "surrogateescape")
    return hashlib.sha256(named).hexdigest()[:_MEMBER_KEY_DIGITS]


@cache
def machine_id() -> str:
    for path in (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id")):
        if path.is_file() and (text := path.read_text().strip()):
            return text
    if sys.platform == "darwin" and (found := _macos_platform_uuid()):
        return found
    return f"{socket.gethostname()}-{platform.machine()}-{uuid.getnode():012x}"


def _macos_platform_uuid() -> str | None:
    try:
        output = subprocess.run(
            ["/usr/sbin/ioreg", "-rd1", "-c", "IOPlatformExpertDevice"], capture_output=True, text=True, timeout=10
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'"IOPlatformUUID" = "([^"]+)"', output)
    return found.group(1) if found else None
