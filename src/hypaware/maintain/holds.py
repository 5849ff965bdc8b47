"""The retention plan of a dataset: which rows to drop and which to hold for a sink, decided from metadata and state.

A (source, day) is due when it is older than the first day kept. Files of a due day that no sink needs are dropped. The
others are held from the day on which retention first found them due, and are dropped undelivered after
`retention.max_hold_days`. So no row is dropped undelivered without a warning period, however old its day was when it
arrived or when retention was turned on.
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
    """Files of one due day whose hold began on the same day."""

    hold: Hold
    files: tuple[DataFile, ...]
    sinks: tuple[str, ...]
    until: date
    """The day on which they are dropped, delivered or not."""

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
    first_day: date | None
    """None if the dataset is kept forever."""
    advances: bool = False
    """Whether the table's `hyp.retained-from` has to advance."""
    droppable: tuple[DataFile, ...] = ()
    held: tuple[Held, ...] = ()
    overdue: tuple[Held, ...] = ()
    """Their hold has ended."""
    known_holds: tuple[Hold, ...] = ()
    """The holds in the state."""
    rows_without_time: int = 0
    warn_days: int = 0

    @property
    def to_drop(self) -> list[DataFile]:
        return [*self.droppable, *(file for held in self.overdue for file in held.files)]

    @property
    def holds(self) -> list[Hold]:
        """The holds that the state should have until the overdue files are dropped."""
        return sorted(held.hold for held in (*self.held, *self.overdue))

    def expiring_soon(self, now: datetime) -> list[Held]:
        """Return the holds that end soon, to warn about them."""
        today = now.astimezone(UTC).date()
        return [held for held in self.held if (held.until - today).days <= self.warn_days]


def plan(home: Home, config: Config, store: Store, dataset: Dataset, now: datetime) -> Plan:
    """Make the plan. Changes nothing and needs no Spark."""
    with store.reading() as connection:
        known_holds = tuple(retention.holds(connection, dataset.name))
        unfinished_after = min((flush.after for flush in flushes.unfinished(connection, dataset.name)), default=None)
    entry = metadata.entry(home, dataset.name)
    first_day = kept.first_day_kept(config, dataset, now)
    if entry is None or first_day is None:
        return Plan(None, known_holds=known_holds)
    table = metadata.read(entry.metadata)
    files = list(metadata.remembered_files(table))
    expired = [file for file in files if file.day is not None and file.day < first_day]
    # Recovery must find the rows of an unfinished flush to know that it was committed.
    due = [
        file
        for file in expired
        if unfinished_after is None or (file.max_seq is not None and file.max_seq <= unfinished_after)
    ]
    droppable, needed = _split(due, needs(home, config, store, dataset.name))
    today, max_days = now.astimezone(UTC).date(), config.retention.max_hold_days
    held = _held(needed, known_holds, today, max_days)
    return Plan(
        first_day,
        _advances(table, first_day),
        tuple(droppable),
        tuple(each for each in held if each.until > today),
        tuple(each for each in held if each.until <= today),
        known_holds,
        sum(file.rows for file in files if file.day is None),
        min(_WARN_DAYS, math.ceil(max_days / 2)),
    )


def announced(dataset: str, overdue: Iterable[Held], at: datetime) -> list[Drop]:
    return [
        Drop(dataset, held.hold.source, held.hold.day, at, _through(held.files), held.rows, held.sinks)
        for held in _merge_by_day(overdue)
    ]


def is_still_there(drop: Drop, files: Iterable[DataFile]) -> bool:
    return any(
        (file.source, file.day) == (drop.source, drop.day) and (file.min_seq is None or file.min_seq <= drop.through)
        for file in files
    )


def _advances(table: Metadata, first_day: date) -> bool:
    retained_from = table.properties.get(RETAINED_FROM)
    return retained_from is None or date.fromisoformat(retained_from) < first_day


def _split(due: Sequence[DataFile], deliveries: Needs) -> tuple[list[DataFile], list[tuple[DataFile, tuple[str, ...]]]]:
    droppable, needed = [], []
    for file in due:
        if sinks := deliveries.sinks_for(file):
            needed.append((file, sinks))
        else:
            droppable.append(file)
    return droppable, needed


def _held(
    needed: Sequence[tuple[DataFile, tuple[str, ...]]], known_holds: Sequence[Hold], today: date, max_days: int
) -> list[Held]:
    """Assign each file to the hold that covers its newest row, or to a new hold that begins today."""
    by_hold: dict[tuple[str, date, date], list[tuple[DataFile, tuple[str, ...]]]] = defaultdict(list)
    holds: dict[tuple[str, date], list[Hold]] = defaultdict(list)
    for hold in known_holds:
        holds[hold.source, hold.day].append(hold)
    for file, sinks in needed:
        assert file.day is not None
        since = _since(file, holds[file.source, file.day], today)
        by_hold[file.source, file.day, since].append((file, sinks))
    through = {(hold.source, hold.day, hold.since): hold.through for hold in known_holds}
    found = []
    for (source, day, since), members in sorted(by_hold.items(), key=lambda item: item[0]):
        files = tuple(file for file, _ in members)
        # A hold grows on its first day only: rows that arrive later have been held for a shorter time.
        last = _through(files) if since == today else through[source, day, since]
        found.append(
            Held(
                Hold(source, day, since, max(last, through.get((source, day, since), 0))),
                files,
                tuple(sorted({sink for _, sinks in members for sink in sinks})),
                kept.days_after(since, max_days),
            )
        )
    return found


def _since(file: DataFile, holds: Sequence[Hold], today: date) -> date:
    """Return the start of the file's hold, by its newest row: compaction may merge rows with different holds."""
    for hold in sorted(holds, key=lambda each: each.through):
        if file.max_seq is None or file.max_seq <= hold.through:
            return min(hold.since, today)
    return today


def _through(files: Iterable[DataFile]) -> int:
    return max((file.max_seq or 0 for file in files), default=0)


def _merge_by_day(overdue: Iterable[Held]) -> list[Held]:
    """Merge holds of one (source, day) that end together, so that one drop is reported."""
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
