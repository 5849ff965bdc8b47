"""What every part of the snapshot is told from: gathered once, so that the parts cannot contradict each other."""

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
    """This process's own where none is given; clients want to know where their user lives."""
    return {"HOME": str(Path.home()), **(os.environ if environment is None else environment)}


@dataclass(frozen=True)
class View:
    home: Home
    config: Config
    """All defaults where the file cannot be read."""
    memory: Memory
    daemon: Mapping[str, Any]
    """`{"state": "stopped"}`, or `running` with what the daemon wrote down last."""
    now: datetime
    environment: Mapping[str, str]
    cache: Path

    @property
    def runs(self) -> bool:
        return self.daemon.get("state") == "running"

    def of_daemon(self, part: str) -> dict[str, Any]:
        """What it wrote of one thing that it does; nothing where it did not, or wrote something else."""
        found = self.daemon.get(part)
        return found if isinstance(found, dict) else {}
