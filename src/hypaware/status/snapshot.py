"""The snapshot of a home: its parts, their diagnostics, and the overall status.

- **down**: nothing is recorded. The home is not set up or not usable, or the daemon is not running although a client or
  a sink needs it.
- **degraded**: there is an error or a warning.
- **ok**: otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypaware.status.diagnostic import Diagnostic

_DOWN = ("not_set_up", "home_no_folder", "home_is_backup", "state_too_new", "daemon_down")

Facts = dict[str, Any]


@dataclass(frozen=True)
class Snapshot:
    home: Facts
    config: Facts
    daemon: Facts
    server: Facts
    engine: Facts
    clients: list[Facts]
    sources: list[Facts]
    spool: Facts
    lake: list[Facts]
    sinks: list[Facts]
    retention: Facts
    disk: Facts
    diagnostics: tuple[Diagnostic, ...]
    """Sorted by severity, errors first."""

    @property
    def overall(self) -> str:
        if any(each.kind in _DOWN for each in self.diagnostics):
            return "down"
        return "degraded" if any(each.severity != "info" for each in self.diagnostics) else "ok"

    def as_json(self) -> Facts:
        return {
            "overall": self.overall,
            "home": self.home,
            "config": self.config,
            "daemon": self.daemon,
            "server": self.server,
            "engine": self.engine,
            "clients": self.clients,
            "sources": self.sources,
            "spool": self.spool,
            "lake": self.lake,
            "sinks": self.sinks,
            "retention": self.retention,
            "disk": self.disk,
            "diagnostics": [each.as_json() for each in self.diagnostics],
        }
