"""Parse an import request: its providers, its time window, and the environment variables that providers may see.

The caller resolves it once: a relative date refers to the moment of the call, and the engine that runs the import may
have been started with other environment variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from hypaware.backfill.pinned import Window
from hypaware.backfill.registry import Providers
from hypaware.backfill.selection import Selection, select
from hypaware.backfill.window import resolve
from hypaware.config import Config
from hypaware.home import Home


@dataclass(frozen=True)
class Wanted:
    selection: Selection
    window: Window
    retention_days: int
    environment: Mapping[str, str]

    def as_args(self, run_id: str) -> dict[str, Any]:
        """Return the arguments of the engine job, as plain JSON."""
        return {
            "providers": [each.name for each in self.selection.chosen],
            "since": self.window.since,
            "until": self.window.until,
            "retention_days": self.retention_days,
            "environment": dict(self.environment),
            "run_id": run_id,
        }


def understand(
    home: Home,
    config: Config,
    providers: Providers,
    *,
    names: Sequence[str] = (),
    since: str | None = None,
    until: str | None = None,
    retention_days: int | None = None,
    now: datetime,
    variables: Mapping[str, str],
) -> Wanted:
    """Raise UsageError for invalid dates, HypError for unknown names. `variables` is the caller's environment."""
    default = config.retention.default_days
    window = resolve(since, until, retention_days, default, now)
    selection = select(providers, config, names)
    return Wanted(
        selection=selection,
        window=window,
        retention_days=default if retention_days is None else retention_days,
        environment=_environment(selection, variables, home),
    )


def _environment(selection: Selection, variables: Mapping[str, str], home: Home) -> dict[str, str]:
    """Return HOME, HYP_HOME and the variables that the chosen providers request."""
    requested = {"HOME", *(name for each in selection.chosen for name in each.provider.environment)}
    found = {name: _absolute(variables[name]) for name in sorted(requested) if name in variables}
    return {**found, "HYP_HOME": str(home.root)}


def _absolute(value: str) -> str:
    """Make an existing relative path absolute: the engine has another working directory."""
    return str(Path(value).absolute()) if value and not Path(value).is_absolute() and Path(value).exists() else value
