"""The paths of a home directory. This package is the only place that knows them; this module creates no files."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

# sun_path holds 104 bytes on macOS and 108 on Linux, including the final NUL.
_SOCKET_PATH_MAX = 100


class _Below:
    """A path below the folder of a home."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, home: Home, _type: type[Home]) -> Path:
        return home.root / self._name


class Home:
    """The paths of one home. Not a dataclass: every command starts here, and importing `dataclasses` takes time."""

    __slots__ = ("root",)

    def __init__(self, root: Path) -> None:
        self.root: Final = root

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Home) and other.root == self.root

    def __hash__(self) -> int:
        return hash(self.root)

    def __repr__(self) -> str:
        return f"Home(root={self.root!r})"

    config = _Below("config.toml")
    state = _Below("state.db")
    mirror = _Below("state.mirror.json")
    gateway = _Below("gateway.id")
    """A copy of the gateway's id, in case the state and its mirror are lost."""
    backup_note = _Below("backup.json")
    """Exists only in a backup, which has the layout of a home but must not be used as one."""
    spool = _Below("spool")
    lake = _Below("lake")
    catalog = _Below("lake/catalog.db")
    keys = _Below("lake/keys.db")
    tombstones = _Below("lake/tombstones.db")
    """The tombstones of purged rows. Stored with the lake, so that they survive the loss of the state."""
    warehouse = _Below("lake/warehouse")
    settlements = _Below("lake/settlements")
    index = _Below("index.db")
    """What reading commands answer from. Derived from the lake and the spool; may be deleted at any time."""
    lake_lock = _Below("lake/lake.lock")
    """Locked by the JVM that owns the lake. The JVM must open it only once: closing a handle releases the lock."""
    delivery = _Below("delivery")
    """Locks of streams, and files that sinks keep, such as tokens."""
    engine = _Below("engine")
    logs = _Below("logs")
    telemetry = _Below("telemetry")
    run = _Below("run")
    lake_owner = _Below("run/lake.owner")
    """Names the process that holds `lake_lock`, for messages only."""
    sources_lock = _Below("run/sources.lock")
    """Locked (flock) by the process that reads sources of history and changes their checkpoints."""
    engine_lock = _Below("run/engine.lock")
    """Locked (flock) by the engine process for its whole lifetime."""

    @classmethod
    def from_environment(cls) -> Home:
        # Symbolic links are resolved: tables name their files by the real path of the home.
        return cls(Path(os.environ.get("HYP_HOME") or Path.home() / ".hyp").expanduser().resolve())

    @property
    def engine_socket(self) -> Path:
        path = self.engine / "engine.sock"
        if len(os.fsencode(path)) <= _SOCKET_PATH_MAX:
            return path
        # Not TMPDIR: a command and the engine may have different values of it.
        import hashlib  # loads OpenSSL, and few commands need a socket

        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]
        return Path("/tmp") / f"hyp-{os.getuid()}-{digest}" / "engine.sock"


def cache_dir() -> Path:
    """Return the folder of jars and class archives, which all homes of a user share."""
    if chosen := os.environ.get("HYP_CACHE"):
        return Path(chosen).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "hypaware"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hypaware"
