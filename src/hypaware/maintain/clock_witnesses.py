"""Whether this machine's clock can be trusted to drop rows, judged by commits, files and servers.

A clock that is set ahead leaves a gap as long as its jump in everything that the machine dates, and everything dated
afterwards moves with it. So no single witness decides:

- Commits: one in the future, or a long time without any before the latest ones, casts doubt on the clock. Commits or
  rows on several days lift the doubt if no other witness objects.
- Files: the times of the lake's data files, and of the transcripts when they were imported. Files from within the gap
  show that the machine was in use and only HypAware was not; they lift the doubt immediately. If none is dated after
  the gap, another clock dates the files (a network file system, a folder of the host), and it contradicts this one.
- Servers: the Date of the destinations that deliveries reach. A server's clock does not move with this one. A server
  that agrees lifts the doubt, unless it runs on this machine. A server that is behind is believed if a gap that long
  exists, or if a second server is behind too: a single server with a wrong clock stops nothing.

A clock that is behind drops too little, which is harmless.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

from hypaware.config.values import is_loopback
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.lake import health
from hypaware.model.datasets import Dataset
from hypaware.state import flushes
from hypaware.state.server_clocks import ServerClock, list_server_clocks
from hypaware.text import format_count

if TYPE_CHECKING:
    from hypaware.iceberg.metadata import TableMetadata
    from hypaware.state.store import StateStore

# Flushes continue while a job waits for the lock; that does not mean that the clock went back.
_TOLERANCE = timedelta(hours=1)
# A machine may be idle for long, but one whose clock jumps to another decade must not empty its lake.
_MAX_IDLE = timedelta(days=180)
# A clock that contradicts earlier commits is trusted after commits, or rows, on so many days.
_CONFIRMING_DAYS = 7
_DAY = timedelta(days=1)
# A clock that is ahead by less makes retention drop a day or two too early.
_TOLERATED_LEAD = timedelta(days=2)
# A server that agreed says nothing about a clock that may have been changed long after.
_SERVER_AGREES_FOR = timedelta(days=7)


@dataclass(frozen=True)
class _Commits:
    """The home's commits: those that lead up to now without a long gap, and the others."""

    recent: Sequence[datetime]
    others: Sequence[datetime]

    @classmethod
    def split(cls, times: Iterable[datetime], now: datetime) -> _Commits:
        known = sorted(times, reverse=True)
        recent: list[datetime] = []
        for time in (each for each in known if each <= now + _TOLERANCE):
            if (recent[-1] if recent else now) - time > _MAX_IDLE:
                break
            recent.append(time)
        return cls(recent, [time for time in known if time not in recent])


def clock_warning(home: Home, store: StateStore, dataset: Dataset, now: datetime) -> str | None:
    """Return a warning if the clock may be wrong, so that nothing of the dataset may be dropped."""
    entry = metadata.find_table(home, dataset.name)
    table = metadata.read_metadata(entry.metadata) if entry else None
    times = [datetime.fromtimestamp(snapshot.at, UTC) for snapshot in table.snapshots] if table else []
    with store.reading() as connection:
        times += flushes.commit_times(connection)
    if not times:
        return None
    commits = _Commits.split(times, now)
    behind, agreeing = _hear_servers(list_server_clocks(store), now)
    outvoted = len(agreeing) >= len(behind)
    if not commits.others and outvoted:
        return None
    shows = f"this machine's clock shows {now:%Y-%m-%d %H:%M} (UTC)"
    dropped = f"the clock may be wrong, so nothing of {dataset.name} is dropped"
    files = _file_times(home, store)
    if not outvoted and (len(behind) > 1 or _has_gap({*times, *files, *_row_days(table)}, behind[0].ahead, now)):
        server = behind[0]
        return (
            f"{shows}, but {server.host} sent the time {server.date:%Y-%m-%d %H:%M} when it showed "
            f"{server.seen_at:%Y-%m-%d %H:%M}, {format_count(server.ahead.days, 'day')} later: {dropped} before the "
            "clock is set or more servers agree with it than not"
        )
    if not commits.others or len(agreeing) > len(behind):
        return None
    if not {*commits.others} & {*_Commits.split([*times, *files], now).others}:
        # The machine was in use all the time.
        return None
    if commits.recent and files and max(files) < commits.recent[-1] - _DAY:
        return (
            f"{shows}, but the newest file of the lake is from {max(files):%Y-%m-%d %H:%M}: {dropped} before files of "
            "the lake are dated by the same clock"
        )
    if _confirmed_by_days(commits, _row_days(table), now):
        return None
    return (
        f"{shows}, but a commit to the lake was at {commits.others[0]:%Y-%m-%d %H:%M}: {dropped} before commits on "
        f"{_CONFIRMING_DAYS} days confirm it, or a server that a sink delivers to"
    )


def _hear_servers(clocks: Iterable[ServerClock], now: datetime) -> tuple[list[ServerClock], list[ServerClock]]:
    """Return the servers whose clock is behind this one, farthest first, and those that agree with it."""
    behind, agreeing = [], []
    for clock in clocks:
        age = now - clock.seen_at
        if age < -_TOLERANCE:
            # It was heard under a clock that has been set back since.
            continue
        if clock.ahead > _TOLERATED_LEAD and age < _MAX_IDLE:
            behind.append(clock)
        elif abs(clock.ahead) <= _TOLERATED_LEAD and age <= _SERVER_AGREES_FOR and not is_loopback(clock.host):
            agreeing.append(clock)
    return sorted(behind, key=lambda clock: clock.ahead, reverse=True), agreeing


def _file_times(home: Home, store: StateStore) -> list[datetime]:
    """Return the times of the lake's data files and, as they were imported, of the transcripts."""
    with store.reading() as connection:
        found = [nanoseconds / 1e9 for nanoseconds in connection.values("SELECT mtime_ns FROM sources")]
    damaged = health.find_damaged_tables(home)
    for entry in metadata.list_tables(home):
        if entry.name not in damaged:
            for file in metadata.iter_cached_files(metadata.read_metadata(entry.metadata)):
                # `hyp verify` reports files that are gone.
                with suppress(OSError):
                    found.append(file.path.stat().st_mtime)
    times = []
    for at in found:
        with suppress(ValueError, OverflowError, OSError):
            times.append(datetime.fromtimestamp(at, UTC))
    return times


def _row_days(table: TableMetadata | None) -> list[datetime]:
    days = {file.day for file in metadata.iter_cached_files(table) if file.day is not None} if table else set()
    return [datetime(day.year, day.month, day.day, tzinfo=UTC) for day in days]


def _has_gap(times: Iterable[datetime], length: timedelta, now: datetime) -> bool:
    """Return whether there is a gap that long before now. Rows count as dated at midnight."""
    known = sorted({*(time for time in times if time <= now), now})
    return any(later - earlier >= length - _DAY for earlier, later in pairwise(known))


def _confirmed_by_days(commits: _Commits, row_days: Iterable[datetime], now: datetime) -> bool:
    future: set[date] = {time.date() for time in commits.others if time > now + _TOLERANCE}
    days: set[date] = {time.date() for time in commits.recent}
    if commits.recent:
        days |= {day.date() for day in row_days if now.date() - _MAX_IDLE <= day.date() <= now.date()}
    return len(days) >= _CONFIRMING_DAYS and len(days) > len(future)
