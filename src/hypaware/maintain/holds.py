"""What retention may drop of a dataset, what it waits with and for whom: decided from metadata and state alone.

A (source, day) is due when its day lies before the first day kept. Of a due day every file goes that no sink needs.
The others are held, from the day on which retention first found them so, and go undelivered when they have been held
for `retention.max_hold_days`. So nothing goes undelivered that was not announced, however old its day was when it
came, or when retention was turned on.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from hypaware.config import Config
from hypaware.home import Home
from hypaware.lake import metadata
from hypaware.lake.metadata import RETAINED_FROM, DataFile, Metadata
from hypaware.maintain import kept
from hypaware.maintain.needed import Needs, needs
from hypaware.model.datasets import Dataset
from hypaware.state import flushes, retention
from hypaware.state.retention import Drop, Hold

if TYPE_CHECKING:
    from hypaware.state.store import Store

_WARN_DAYS = 7


@dataclass(frozen=True)
class Held:
    """Files of one due day that began to wait on the same day."""

    hold: Hold
    files: tuple[DataFile, ...]
    sinks: tuple[str, ...]
    until: date
    """The day on which they go, delivered or not."""

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def as_json(self) -> dict[str, Any]:
        return {
            "source": self.hold.source,
            "day": self.hold.day.isoformat(),
            "rows": self.rows,
            "sinks": list(self.sinks),
            "since": self.hold.since.isoformat(),
            "until": self.until.isoformat(),
        }


@dataclass(frozen=True)
class Plan:
    first_kept: date | None
    """None: the dataset is kept for ever."""
    rises: bool = False
    """Whether the table does not say yet that earlier days are gone."""
    free: tuple[DataFile, ...] = ()
    held: tuple[Held, ...] = ()
    overdue: tuple[Held, ...] = ()
    """They were waited for long enough."""
    known: tuple[Hold, ...] = ()
    """As the state has them."""
    rows_without_time: int = 0
    warn_days: int = 0

    @property
    def gone(self) -> list[DataFile]:
        return [*self.free, *(file for held in self.overdue for file in held.files)]

    @property
    def holds(self) -> list[Hold]:
        """As the state should have them, until what is overdue is gone."""
        return sorted(held.hold for held in (*self.held, *self.overdue))

    def nearly_over(self, now: datetime) -> list[Held]:
        """Those to be warned of."""
        today = now.astimezone(UTC).date()
        return [held for held in self.held if (held.until - today).days <= self.warn_days]


def plan(home: Home, config: Config, store: Store, dataset: Dataset, now: datetime) -> Plan:
    """Changes nothing, and needs no Spark."""
    with store.reading() as connection:
        known = tuple(retention.holds(connection, dataset.name))
        unsettled = min((flush.after for flush in flushes.unfinished(connection, dataset.name)), default=None)
    entry = metadata.entry(home, dataset.name)
    first_kept = kept.first_day_kept(config, dataset, now)
    if entry is None or first_kept is None:
        return Plan(None, known=known)
    table = metadata.read(entry.metadata)
    files = list(metadata.remembered_files(table))
    over = [file for file in files if file.day is not None and file.day < first_kept]
    # Of a flush that nobody has settled yet, recovery must find the rows, to know that it landed.
    due = [file for file in over if unsettled is None or (file.max_seq is not None and file.max_seq <= unsettled)]
    free, wanted = _apart(due, needs(home, config, store, dataset.name))
    today, most = now.astimezone(UTC).date(), config.retention.max_hold_days
    held = _held(wanted, known, today, most)
    return Plan(
        first_kept,
        _rises(table, first_kept),
        tuple(free),
        tuple(each for each in held if each.until > today),
        tuple(each for each in held if each.until <= today),
        known,
        sum(file.rows for file in files if file.day is None),
        min(_WARN_DAYS, math.ceil(most / 2)),
    )


def announced(dataset: str, overdue: Iterable[Held], at: datetime) -> list[Drop]:
    return [
        Drop(dataset, held.hold.source, held.hold.day, at, _through(held.files), held.rows, held.sinks)
        for held in _joined(overdue)
    ]


def is_still_there(drop: Drop, files: Iterable[DataFile]) -> bool:
    return any(
        (file.source, file.day) == (drop.source, drop.day) and (file.min_seq is None or file.min_seq <= drop.through)
        for file in files
    )


def _rises(table: Metadata, first_kept: date) -> bool:
    known = table.properties.get(RETAINED_FROM)
    return known is None or date.fromisoformat(known) < first_kept


def _apart(due: Sequence[DataFile], by_whom: Needs) -> tuple[list[DataFile], list[tuple[DataFile, tuple[str, ...]]]]:
    free, wanted = [], []
    for file in due:
        if sinks := by_whom.of(file):
            wanted.append((file, sinks))
        else:
            free.append(file)
    return free, wanted


def _held(
    wanted: Sequence[tuple[DataFile, tuple[str, ...]]], known: Sequence[Hold], today: date, most: int
) -> list[Held]:
    """Each file under the hold that its newest row is part of, else under one of today."""
    by_hold: dict[tuple[str, date, date], list[tuple[DataFile, tuple[str, ...]]]] = defaultdict(list)
    holds: dict[tuple[str, date], list[Hold]] = defaultdict(list)
    for hold in known:
        holds[hold.source, hold.day].append(hold)
    for file, sinks in wanted:
        assert file.day is not None
        since = _since(file, holds[file.source, file.day], today)
        by_hold[file.source, file.day, since].append((file, sinks))
    through = {(hold.source, hold.day, hold.since): hold.through for hold in known}
    found = []
    for (source, day, since), members in sorted(by_hold.items(), key=lambda item: item[0]):
        files = tuple(file for file, _ in members)
        # A hold grows on its first day only: what comes later has waited for a shorter time.
        reach = _through(files) if since == today else through[source, day, since]
        found.append(
            Held(
                Hold(source, day, since, max(reach, through.get((source, day, since), 0))),
                files,
                tuple(sorted({sink for _, sinks in members for sink in sinks})),
                kept.days_after(since, most),
            )
        )
    return found


def _since(file: DataFile, holds: Sequence[Hold], today: date) -> date:
    """By its newest row: a compaction may have joined rows that began to wait on different days."""
    for hold in sorted(holds, key=lambda each: each.through):
        if file.max_seq is None or file.max_seq <= hold.through:
            return min(hold.since, today)
    return today


def _through(files: Iterable[DataFile]) -> int:
    return max((file.max_seq or 0 for file in files), default=0)


def _joined(overdue: Iterable[Held]) -> list[Held]:
    """One for each (source, day): of several holds that end together, one drop is told."""
    by_day: dict[tuple[str, date], list[Held]] = defaultdict(list)
    for held in overdue:
        by_day[held.hold.source, held.hold.day].append(held)
    return [
        Held(
            parts[0].hold,
            tuple(file for part in parts for file in part.files),
            tuple(sorted({sink for part in parts for sink in part.sinks})),
            parts[0].until,
        )
        for _, parts in sorted(by_day.items())
    ]
