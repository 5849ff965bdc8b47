"""Who a home is, so that a moved or copied one is noticed before anything in it is touched.

A home is the same home while its path, its inode and its machine are the same; elsewhere with the same inode, it was
moved; with another one, or on another machine, it is a copy, wherever it lies. `incarnation` is drawn anew whenever
its memory may have forked (a copy, a rebuilt state), so that nothing sent under the old one is confused with the new.

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

# FS_IOC_GETVERSION: the generation of an inode number, by which NFS servers tell stale handles.
_GET_VERSION = 0x80087601
# The inode of a home that lies nowhere yet: a backup. Wherever it is opened, it is a copy.
NOWHERE = 0


class Whereabouts(Enum):
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
    """The last sequence of each earlier incarnation: rows up to it are delivered under that one, whoever has them."""
    home_born: int | None = None
    """Tells the folder from an earlier one that had the same inode; None where the file system does not say."""

    def reborn(self, through: int) -> Identity:
        """The same home with a memory that may have forked after this sequence."""
        parents, forks = (*self.parents, self.incarnation), (*self.forks, through)
        return replace(self, incarnation=new_incarnation(), parents=parents, forks=forks)

    def placed(self, root: Path) -> Identity:
        """The same home, which lies here now."""
        return replace(self, machine_id=machine_id(), home_path=str(root.resolve()), **_folder(root))

    def where(self, other: Identity) -> Identity:
        """The same home, which lies where the other does."""
        place = {name: getattr(other, name) for name in ("machine_id", "home_path", "home_inode", "home_born")}
        return replace(self, **place)

    def whereabouts(self, root: Path) -> Whereabouts:
        """What the folder is, if this is the home that it says it is."""
        if self.machine_id != machine_id() or self.home_inode != root.stat().st_ino:
            return Whereabouts.COPIED
        if self.home_born is not None and born(root) not in (None, self.home_born):
            return Whereabouts.COPIED
        return Whereabouts.HERE if self.home_path == str(root.resolve()) else Whereabouts.MOVED

    def descends_from(self, other: Identity) -> bool:
        """Whether this is the other one or a later life of it; else it is an earlier one, or of another line."""
        return other.incarnation in (self.incarnation, *self.parents)

    def epochs(self) -> list[Epoch]:
        """The incarnations and the sequences that belong to each, oldest first."""
        found, after = [], 0
        for incarnation, through in zip(self.parents, self.forks, strict=True):
            found.append(Epoch(incarnation, after, max(after, through)))
            after = max(after, through)
        return [*found, Epoch(self.incarnation, after, None)]


@dataclass(frozen=True)
class Epoch:
    """The sequences (after, through] belong to the incarnation; the last epoch has no end yet."""

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
        **_folder(root),
    )


def _folder(root: Path) -> dict[str, Any]:
    return {"home_inode": root.stat().st_ino, "home_born": born(root)}


def born(folder: Path) -> int | None:
    """What two folders differ in that had the same inode one after the other: file systems give numbers out again."""
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


def from_json(values: dict[str, object]) -> Identity:
    known = {name: values[name] for name in Identity.__dataclass_fields__ if name not in ("forks", "home_born")}
    known["home_born"] = values.get("home_born")
    parents: tuple[str, ...] = tuple(values["parents"])  # type: ignore[arg-type]
    return Identity(**{**known, "parents": parents, "forks": padded(values.get("forks", ()), parents)})  # type: ignore[arg-type]


def padded(forks: Any, parents: tuple[str, ...]) -> tuple[int, ...]:
    """One for each parent; of those whose end nobody wrote down, nothing is known to belong to them."""
    held = [int(fork) for fork in forks][-len(parents) :] if parents else []
    return (*[0] * (len(parents) - len(held)), *held)


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
        told = subprocess.run(
            ["/usr/sbin/ioreg", "-rd1", "-c", "IOPlatformExpertDevice"], capture_output=True, text=True, timeout=10
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'"IOPlatformUUID" = "([^"]+)"', told)
    return found.group(1) if found else None
