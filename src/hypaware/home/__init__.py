"""The paths of a home directory. This package is the only place that knows them; this module creates no files."""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

# sun_path holds 104 bytes on macOS and 108 on Linux, including the final NUL.
_SOCKET_PATH_MAX = 100


@dataclass(frozen=True)
class Home:
    root: Path

    @classmethod
    def from_environment(cls) -> Home:
        # Symbolic links are resolved: tables name their files by the real path of the home.
        return cls(Path(os.environ.get("HYP_HOME") or Path.home() / ".hyp").expanduser().resolve())

    @property
    def config(self) -> Path:
        return self.root / "config.toml"

    @property
    def state(self) -> Path:
        return self.root / "state.db"

    @property
    def mirror(self) -> Path:
        return self.root / "state.mirror.json"

    @property
    def gateway(self) -> Path:
        """A copy of the gateway's id, in case the state and its mirror are lost."""
        return self.root / "gateway.id"

    @property
    def backup_note(self) -> Path:
        """Exists only in a backup, which has the layout of a home but must not be used as one."""
        return self.root / "backup.json"

    @property
    def spool(self) -> Path:
        return self.root / "spool"

    @property
    def lake(self) -> Path:
        return self.root / "lake"

    @property
    def catalog(self) -> Path:
        return self.lake / "catalog.db"

    @property
    def keys(self) -> Path:
        return self.lake / "keys.db"

    @property
    def tombstones(self) -> Path:
        """The tombstones of purged rows. Stored with the lake, so that they survive the loss of the state."""
        return self.lake / "tombstones.db"

    @property
    def warehouse(self) -> Path:
        return self.lake / "warehouse"

    @property
    def delivery(self) -> Path:
        """Locks of streams, and files that sinks keep, such as tokens."""
        return self.root / "delivery"

    @property
    def engine(self) -> Path:
        return self.root / "engine"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def telemetry(self) -> Path:
        return self.root / "telemetry"

    @property
    def lake_lock(self) -> Path:
        """Locked by the JVM that owns the lake. The JVM must open it only once: closing a handle releases the lock."""
        return self.lake / "lake.lock"

    @property
    def lake_owner(self) -> Path:
        """Names the process that holds `lake_lock`, for messages only."""
        return self.run / "lake.owner"

    @property
    def engine_lock(self) -> Path:
        """Locked (flock) by the engine process for its whole lifetime."""
        return self.run / "engine.lock"

    @property
    def engine_socket(self) -> Path:
        path = self.engine / "engine.sock"
        if len(os.fsencode(path)) <= _SOCKET_PATH_MAX:
            return path
        # Not TMPDIR: a command and the engine may have different values of it.
        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]
        return Path("/tmp") / f"hyp-{os.getuid()}-{digest}" / "engine.sock"


def cache_dir() -> Path:
    """Return the folder of jars and class archives, which all homes of a user share."""
    if chosen := os.environ.get("HYP_CACHE"):
        return Path(chosen).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "hypaware"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hypaware"
