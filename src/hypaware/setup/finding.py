"""Which clients there are on this machine, and how much of their history waits to be imported.

Told from names, sizes and times of files, and from what earlier imports took: no engine, no trace, and no transcript is
opened but the beginnings of the oldest few, for the first day. So these are estimates; a dry run counts.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import nsmallest
from pathlib import Path

from hypaware import plugins
from hypaware.backfill import marks, pinning
from hypaware.backfill.pinned import Window
from hypaware.backfill.pinning import Due
from hypaware.backfill.provider import Provider
from hypaware.backfill.quiet import nothing_on_stdout
from hypaware.clients.client import Client
from hypaware.errors import HypError
from hypaware.home import Home
from hypaware.regular import open_regular

_HEAD_BYTES = 64 << 10
_OLDEST = 8


@dataclass(frozen=True)
class Estimate:
    sessions: int = 0
    bytes: int = 0
    first_day: str | None = None
    last_day: str | None = None


@dataclass(frozen=True)
class Waiting:
    """A source of history that is due."""

    path: Path
    size: int
    last_written: datetime


@dataclass(frozen=True)
class FoundClient:
    client: Client
    installed: bool
    waiting: tuple[Waiting, ...] = ()
    imported: int = 0
    """Sources that have not changed since they were imported."""
    first_day: str | None = None
    problem: str | None = None
    is_begun: bool = False
    """Something of its history was imported before, whatever became of the file since."""

    @property
    def name(self) -> str:
        return self.client.name

    def estimate(self, since: datetime | None = None) -> Estimate:
        """Of what has something in the window: a file that was last written before it has not."""
        within = [each for each in self.waiting if since is None or each.last_written >= since]
        if not within:
            return Estimate()
        days = [day for day in (self.first_day, since.date().isoformat() if since else None) if day]
        last = max(each.last_written for each in within).date().isoformat()
        size = sum(each.size for each in within)
        return Estimate(sessions(each.path for each in within), size, min(max(days, default=last), last), last)


def clients(home: Home, variables: Mapping[str, str], now: datetime) -> list[FoundClient]:
    """Of all registered clients; `variables` is the user's environment, with HOME."""
    environment = {**variables, "HYP_HOME": str(home.root)}
    with nothing_on_stdout():
        return [_look(home, each, environment, now) for each in plugins.load(plugins.CLIENTS, Client)]


def sessions(paths: Iterable[Path]) -> int:
    """Files, those of subagents left out: they lie in a folder that has the name of their session's file."""
    known = {str(path) for path in paths}
    return sum(not any(f"{folder}{Path(path).suffix}" in known for folder in Path(path).parents) for path in known)


def _look(home: Home, client: Client, environment: Mapping[str, str], now: datetime) -> FoundClient:
    """A client that cannot be looked at, which may be a plugin's fault, does not hide the others."""
    try:
        installed = _is_installed(client, environment)
    except Exception as error:
        return FoundClient(client, False, problem=f"{type(error).__name__}: {error}")
    if client.backfill is None:
        return FoundClient(client, installed)
    due: list[Due] = []
    imported, is_begun = 0, False
    try:
        for dataset in client.backfill.datasets:
            known = marks.known(home, client.name, dataset)
            is_begun = is_begun or bool(known)
            found = pinning.survey(client.backfill, environment, known, Window(), now, in_order=False)
            # The sources are the same for each dataset.
            if len(found.due) >= len(due):
                due, imported = found.due, found.unchanged
    except HypError as error:
        return FoundClient(client, installed, problem=error.message)
    waiting = tuple(Waiting(each.pinned.path, each.pinned.size, _time(each.pinned.mtime_ns)) for each in due)
    return FoundClient(
        client,
        installed or bool(due or imported),
        waiting,
        imported,
        _first_day(client.backfill, waiting),
        is_begun=is_begun,
    )


def _is_installed(client: Client, environment: Mapping[str, str]) -> bool:
    has_settings = client.settings is not None and client.settings.path(environment).parent.is_dir()
    return has_settings or shutil.which(client.name, path=environment.get("PATH")) is not None


def _first_day(provider: Provider, waiting: Sequence[Waiting]) -> str | None:
    """The oldest file by its last line is nearly always the one with the oldest first line."""
    found = (_day_in_head(provider, each) for each in nsmallest(_OLDEST, waiting, key=lambda each: each.last_written))
    return min((day for day in found if day), default=None)


def _day_in_head(provider: Provider, source: Waiting) -> str | None:
    try:
        with open_regular(source.path) as file:
            time = provider.first_time(file.read(_HEAD_BYTES))
    except Exception:
        # It belongs to a plugin, or is gone. The import will say what is wrong; an estimate may do without.
        time = None
    return (time or source.last_written.isoformat())[:10]


def _time(nanoseconds: int) -> datetime:
    try:
        return datetime.fromtimestamp(nanoseconds / 10**9, UTC)
    except (OverflowError, ValueError, OSError):
        return datetime.fromtimestamp(0, UTC)
