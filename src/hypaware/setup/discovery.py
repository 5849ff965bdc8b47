"""Find the clients on this machine and estimate how much of their history is not imported yet.

The estimate uses names, sizes and times of files and the checkpoints of earlier imports. It needs no engine and leaves
no trace; of the transcripts, it reads only the beginnings, for the sessions and the first day. A dry run counts
exactly.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import nsmallest
from pathlib import Path

from hypaware import plugins
from hypaware.backfill import survey
from hypaware.backfill.report import redirect_stdout
from hypaware.backfill.survey import DueSource, read_import_state
from hypaware.clients.client import Client, Provider, SessionProvider
from hypaware.clients.compressed_content import read_head
from hypaware.clients.reader import TimeWindow
from hypaware.errors import HypError
from hypaware.home import Home

_HEAD_BYTES = 64 << 10
_OLDEST_FILES = 8


@dataclass(frozen=True)
class HistoryEstimate:
    sessions: int = 0
    bytes: int = 0
    first_day: str | None = None
    last_day: str | None = None


@dataclass(frozen=True)
class PendingSource:
    """A source of history with content that is not imported yet."""

    path: Path
    size: int
    last_written: datetime
    session: str
    """The id of its session, or its path if its first bytes do not show it."""


@dataclass(frozen=True)
class FoundClient:
    client: Client
    installed: bool
    waiting: tuple[PendingSource, ...] = ()
    imported: int = 0
    """Number of sources that have not changed since their import."""
    first_day: str | None = None
    problem: str | None = None
    was_imported: bool = False
    """Whether any of its history was imported before, even if those files are gone."""

    @property
    def name(self) -> str:
        return self.client.name

    def estimate(self, since: datetime | None = None) -> HistoryEstimate:
        """Estimate the history since the given time: files last written before it are left out."""
        within = [each for each in self.waiting if since is None or each.last_written >= since]
        if not within:
            return HistoryEstimate()
        days = [day for day in (self.first_day, since.date().isoformat() if since else None) if day]
        last = max(each.last_written for each in within).date().isoformat()
        size = sum(each.size for each in within)
        sessions = len({each.session for each in within})
        return HistoryEstimate(sessions, size, min(max(days, default=last), last), last)


def find_clients(home: Home, variables: Mapping[str, str], now: datetime) -> list[FoundClient]:
    """Find all registered clients. `variables` is the user's environment, including HOME."""
    environment = {**variables, "HYP_HOME": str(home.root)}
    with redirect_stdout():
        return [_examine_client(home, each, environment, now) for each in plugins.load_plugins(plugins.CLIENTS, Client)]


def _examine_client(home: Home, client: Client, environment: Mapping[str, str], now: datetime) -> FoundClient:
    """Examine one client; report an error, possibly of a plugin, as its problem."""
    try:
        has_settings = client.settings is not None and client.settings.path(environment).parent.is_dir()
        installed = has_settings or shutil.which(client.name, path=environment.get("PATH")) is not None
    except Exception as error:
        return FoundClient(client, False, problem=f"{type(error).__name__}: {error}")
    if client.backfill is None:
        return FoundClient(client, installed)
    due: list[DueSource] = []
    imported, was_imported = 0, False
    try:
        for dataset in client.backfill.datasets:
            known = read_import_state(home, client.name, dataset).checkpoints
            was_imported = was_imported or bool(known)
            found = survey.survey_sources(client.backfill, environment, known, TimeWindow(), now, in_order=False)
            # All datasets have the same sources.
            if len(found.due) >= len(due):
                due, imported = found.due, found.unchanged
    except HypError as error:
        return FoundClient(client, installed, problem=error.message)
    waiting = tuple(_examine_source(client.backfill, each) for each in due)
    installed = installed or bool(due or imported)
    first_day = _first_day(client.backfill, waiting)
    return FoundClient(client, installed, waiting, imported, first_day, was_imported=was_imported)


def _examine_source(provider: Provider, due: DueSource) -> PendingSource:
    path, session = due.snapshot.path, None
    if isinstance(provider, SessionProvider):
        with suppress(Exception):
            session = provider.session_of(path, read_head(path, _HEAD_BYTES))
    return PendingSource(path, due.snapshot.size, _to_datetime(due.snapshot.mtime_ns), session or str(path))


def _first_day(provider: Provider, waiting: Sequence[PendingSource]) -> str | None:
    """Return the first day in the files with the oldest last lines; one of them nearly always has it."""
    found = []
    for source in nsmallest(_OLDEST_FILES, waiting, key=lambda each: each.last_written):
        time = None
        # If a plugin fails or the file is gone, the import will report it; an estimate can do without.
        with suppress(Exception):
            time = provider.first_time(read_head(source.path, _HEAD_BYTES))
        found.append((time or source.last_written.isoformat())[:10])
    return min(filter(None, found), default=None)


def _to_datetime(nanoseconds: int) -> datetime:
    try:
        return datetime.fromtimestamp(nanoseconds / 10**9, UTC)
    except (OverflowError, ValueError, OSError):
        return datetime.fromtimestamp(0, UTC)
