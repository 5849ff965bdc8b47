"""Where everything of one home lies on disk. The one place for paths; it creates nothing."""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

# sun_path holds 104 bytes on macOS and 108 on Linux, with the closing NUL.
_SOCKET_PATH_MAX = 100


@dataclass(frozen=True)
class Home:
    root: Path

    @classmethod
    def from_environment(cls) -> Home:
        # Without links: tables name their files by the home's own path, whichever way it was reached.
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
        """The gateway's id, for a home that has lost everything else that knows it."""
        return self.root / "gateway.id"

    @property
    def backup_note(self) -> Path:
        """Only in a backup, which is laid out as a home and is none."""
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
        """What was purged and must not come back; with the lake, so that it outlives the state."""
        return self.lake / "tombstones.db"

    @property
    def warehouse(self) -> Path:
        return self.lake / "warehouse"

    @property
    def delivery(self) -> Path:
        """Locks of streams, and what sinks keep for themselves (tokens)."""
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
        """Locked by the JVM that owns the lake. Nothing else may open it: closing any handle frees the lock."""
        return self.lake / "lake.lock"

    @property
    def lake_owner(self) -> Path:
        """Who has that lock, for messages only."""
        return self.run / "lake.owner"

    @property
    def engine_lock(self) -> Path:
        """Locked (flock) by the engine process for its whole life."""
        return self.run / "engine.lock"

    @property
    def engine_socket(self) -> Path:
        path = self.engine / "engine.sock"
        if len(os.fsencode(path)) <= _SOCKET_PATH_MAX:
            return path
        # Not TMPDIR: a command and the engine may have different ones, and must find each other.
        short = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]
        return Path("/tmp") / f"hyp-{os.getuid()}-{short}" / "engine.sock"


def cache_dir() -> Path:
    """Jars and class archives, shared by all homes of a user."""
    if chosen := os.environ.get("HYP_CACHE"):
        return Path(chosen).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "hypaware"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hypaware"
