"""Who a home is, so that a moved or copied one is noticed before anything in it is touched.

A home is the same home while its path, its inode and its machine are the same. `incarnation` is drawn anew whenever
its memory may have forked (a copy, a rebuilt state), so that nothing sent under the old one is confused with the new.
"""

from __future__ import annotations

import platform
import re
import secrets
import shlex
import socket
import subprocess
import sys
import uuid
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from hypaware.errors import NotReady


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

    def reborn(self, through: int) -> Identity:
        """The same home with a memory that may have forked after this sequence."""
        parents, forks = (*self.parents, self.incarnation), (*self.forks, through)
        return replace(self, incarnation=new_incarnation(), parents=parents, forks=forks)

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
        home_inode=root.stat().st_ino,
        forks=forks,
    )


def new_incarnation() -> str:
    return secrets.token_hex(16)


def check(known: Identity, root: Path) -> None:
    """Raises, before anything is read or written, if this is not the home that it was."""
    here, inode = str(root.resolve()), root.stat().st_ino
    if known.machine_id == machine_id() and known.home_inode == inode and known.home_path == here:
        return
    moved = known.machine_id == machine_id() and known.home_inode == inode
    what = "was moved: it belongs at" if moved else "is a copy of the home that belongs at"
    original = shlex.quote(known.home_path)
    raise NotReady(
        f"the home {here} {what} {known.home_path}; its lake names files by their old place, "
        "so nothing was read or written",
        kind="home_moved" if moved else "home_copied",
        repair=f"mv {shlex.quote(here)} {original}" if moved else f"HYP_HOME={original} hyp ...",
    )


def from_json(values: dict[str, object]) -> Identity:
    known = {name: values[name] for name in Identity.__dataclass_fields__ if name != "forks"}
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
