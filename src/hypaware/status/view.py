"""The input of every part of the snapshot, read once so that the parts cannot contradict each other."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from hypaware.config import Config
from hypaware.home import Home
from hypaware.status.memory import Memory


def surroundings(environment: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return the given environment, or this process's own, with HOME set, which clients need."""
    return {"HOME": str(Path.home()), **(os.environ if environment is None else environment)}


@dataclass(frozen=True)
class View:
    home: Home
    config: Config
    """The defaults if the file is invalid."""
    state: Memory
    daemon: Mapping[str, Any]
    """`{"state": "stopped"}`, or `running` with the contents of the daemon's status file."""
    now: datetime
    environment: Mapping[str, str]
    cache: Path

    @property
    def is_daemon_running(self) -> bool:
        return self.daemon.get("state") == "running"

    def daemon_part(self, part: str) -> dict[str, Any]:
        """Return one part of the daemon's status file, or an empty dict if it is missing or malformed."""
        value = self.daemon.get(part)
        return value if isinstance(value, dict) else {}
