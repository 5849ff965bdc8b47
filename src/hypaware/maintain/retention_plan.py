"""The retention plan of a dataset: which rows to drop and which to hold for a sink, from metadata, config and state.

Files of a day before the first day kept that no sink needs are dropped. The others are held from the day on which
retention first found them due, and are dropped undelivered after `retention.max_hold_days`. So no row is dropped
undelivered without a warning period, however old its day was when it arrived or when retention was turned on.

A sink has received the rows up to its stream's watermark. Nothing counts as received if there is no stream yet, if the
stream belongs to another destination than the config names, or if the destination is unknown. Rows with a dead letter
are needed too: the dead letter holds a copy of them in the state, which may be lost. A sink that the config no longer
has, or that does not deliver the dataset, needs nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from hypaware.config import Config
from hypaware.export.status import StreamState, read_stream_states
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.iceberg.metadata import RETAINED_FROM_PROPERTY, DataFile
from hypaware.lake import health
from hypaware.maintain.clock_witnesses import clock_warning
from hypaware.model import datasets
from hypaware.model.datasets import Dataset
from hypaware.state import dead_letters, flushes, retention
from hypaware.state.retention import RetentionDrop, RetentionHold
from hypaware.text import format_count

if TYPE_CHECKING:
    from hypaware.state.store import StateStore

_WARN_DAYS = 7


@dataclass(frozen=True)
class HeldDay:
    """Files of one due day whose hold began on the same day."""

    hold: RetentionHold
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
class RetentionPlan:
    first_day: date | None
    """None if the dataset is kept forever."""
    advances: bool = False
    """Whether the table's `hyp.retained-from` has to be set to the first day."""
    revokes: bool = False
    """Whether the table's `hyp.retained-from` is in the future, because it was set under a clock that was ahead."""
    droppable: tuple[DataFile, ...] = ()
    held: tuple[HeldDay, ...] = ()
    overdue: tuple[HeldDay, ...] = ()
    """Their hold has ended."""
    known_holds: tuple[RetentionHold, ...] = ()
    """The holds in the state."""
    rows_without_time: int = 0
    warn_days: int = 0
    """A hold is announced this many days before it ends."""

    @property
    def to_drop(self) -> list[DataFile]:
        return [*self.droppable, *(file for held in self.overdue for file in held.files)]

    @property
    def rows_to_drop(self) -> int:
        return sum(file.rows for file in self.to_drop)

    @property
    def rows_held(self) -> int:
        return sum(held.rows for held in self.held)

    @property
    def holds(self) -> list[RetentionHold]:
        """The holds that the state should have until the overdue files are dropped."""
        return sorted(held.hold for held in (*self.held, *self.overdue))


def plan_retention(home: Home, config: Config, store: StateStore, dataset: Dataset, now: datetime) -> RetentionPlan:
    """Make the plan. Changes nothing and needs no Spark."""
    with store.reading() as connection:
        known_holds = tuple(retention.list_holds(connection, dataset.name))
        unfinished_after = min(
            (flush.after for flush in flushes.unfinished_flushes(connection, dataset.name)), default=None
        )
    entry = metadata.find_table(home, dataset.name)
    first_day = first_day_kept(config, dataset, now)
    if entry is None or first_day is None:
        return RetentionPlan(None, known_holds=known_holds)
    table = metadata.read_metadata(entry.metadata)
    files = list(metadata.iter_cached_files(table))
    due = [file for file in files if file.day is not None and file.day < first_day]
    if unfinished_after is not None:
        # Recovery must find the rows of an unfinished flush to know that it was committed.
        due = [file for file in due if file.max_seq is not None and file.max_seq <= unfinished_after]
    deliveries = find_pending_deliveries(home, config, store, dataset.name)
    needed = {file: sinks for file in due if (sinks := deliveries.sinks_for(file))}
    today, max_days = now.astimezone(UTC).date(), config.retention.max_hold_days
    held = _group_by_hold(needed, known_holds, today, max_days)
    retained_from = table.properties.get(RETAINED_FROM_PROPERTY)
    kept_since = date.fromisoformat(retained_from) if retained_from else date.min
    return RetentionPlan(
        first_day,
        not first_day <= kept_since <= today,
        kept_since > today,
        tuple(file for file in due if file not in needed),
        tuple(each for each in held if each.until > today),
        tuple(each for each in held if each.until <= today),
        known_holds,
        sum(file.rows for file in files if file.day is None),
        min(_WARN_DAYS, math.ceil(max_days / 2)),
    )


def days_kept(config: Config, dataset: Dataset) -> int:
    """Return the number of days; 0 means forever."""
    configured = config.retention.datasets.get(dataset.name)
    if configured is not None:
        return configured
    return config.retention.default_days if dataset.retention_days is None else dataset.retention_days


def first_day_kept(config: Config, dataset: Dataset, now: datetime) -> date | None:
    """Return the first day that is kept; rows of earlier days are due. None means that everything is kept."""
    if not (days := days_kept(config, dataset)):
        return None
    try:
        return now.astimezone(UTC).date() - timedelta(days=days)
    except OverflowError:
        return None


@dataclass(frozen=True)
class PendingDeliveries:
    """What the sinks of a dataset have received."""

    sinks: tuple[str, ...] = ()
    """The sinks that rows are held for."""
    delivered_to: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """For each (sink, source), the sequence up to which everything was delivered; 0 if unknown."""
    dead_letters: Mapping[tuple[str, str], list[tuple[int, int]]] = field(default_factory=dict)
    """For each (sink, source), the ranges (after, last] of its dead letters."""

    def sinks_for(self, file: DataFile) -> tuple[str, ...]:
        """Return the sinks that need, or may need, a row of the file."""
        lowest, highest = file.min_seq, file.max_seq
        if lowest is None or highest is None or file.sequenced < file.rows:
            return self.sinks
        return tuple(
            sink
            for sink in self.sinks
            if highest > self.delivered_to.get((sink, file.source), 0)
            or any(after < highest and lowest <= last for after, last in self.dead_letters.get((sink, file.source), ()))
        )


def find_pending_deliveries(home: Home, config: Config, store: StateStore, dataset: str) -> PendingDeliveries:
    sinks = tuple(sorted(name for name, sink in config.sinks.items() if dataset in sink.datasets))
    if not sinks or not config.retention.wait_for_sinks:
        return PendingDeliveries()
    # Read in this order: rows whose dead letter is recorded in between are above the watermark read before.
    delivered_to = {
        (stream.key.sink, stream.key.source): _delivered_through(stream)
        for stream in read_stream_states(home, config, store, sinks)
        if stream.key.dataset == dataset
    }
    ranges: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    with store.reading() as connection:
        for letter in dead_letters.list_letters(connection):
            if letter.key.dataset == dataset:
                ranges[letter.key.sink, letter.key.source].append((letter.after, letter.last))
    return PendingDeliveries(sinks, delivered_to, ranges)


def _delivered_through(stream: StreamState) -> int:
    if stream.removed or stream.error or stream.points_elsewhere:
        return 0
    watermark = stream.watermark or 0
    # A delivery in progress starts at the watermark; if it ever starts below, its rows are needed too.
    return min(watermark, stream.pending.after) if stream.pending else watermark


def _group_by_hold(
    needed: Mapping[DataFile, tuple[str, ...]], known_holds: Sequence[RetentionHold], today: date, max_days: int
) -> list[HeldDay]:
    """Assign each file to the hold that covers its newest row, or to a new hold that begins today."""
    holds: dict[tuple[str, date], list[RetentionHold]] = defaultdict(list)
    for hold in sorted(known_holds, key=lambda each: each.through):
        holds[hold.source, hold.day].append(hold)
    by_hold: dict[tuple[str, date, date], list[DataFile]] = defaultdict(list)
    for file in needed:
        assert file.day is not None
        starts = (
            min(hold.since, today)
            for hold in holds[file.source, file.day]
            if file.max_seq is None or file.max_seq <= hold.through
        )
        by_hold[file.source, file.day, next(starts, today)].append(file)
    through = {(hold.source, hold.day, hold.since): hold.through for hold in known_holds}
    found = []
    for (source, day, since), files in sorted(by_hold.items(), key=lambda item: item[0]):
        last = through.get((source, day, since), 0)
        if since == today:
            # A hold grows on its first day only: rows that arrive later have been held for a shorter time.
            last = max(last, _last_sequence(files))
        try:
            until = since + timedelta(days=max_days)
        except OverflowError:
            until = date.max
        sinks = tuple(sorted({sink for file in files for sink in needed[file]}))
        found.append(HeldDay(RetentionHold(source, day, since, last), tuple(files), sinks, until))
    return found


def _last_sequence(files: Iterable[DataFile]) -> int:
    return max((file.max_seq or 0 for file in files), default=0)


def is_retention_due(home: Home, config: Config, store: StateStore, dataset: Dataset, now: datetime) -> bool:
    """Return whether a run would drop rows or has to record a new hold.

    That the first day kept has advanced is no reason for a run: it advances every day.
    """
    if clock_warning(home, store, dataset, now):
        return False
    plan = plan_retention(home, config, store, dataset, now)
    is_first_run = plan.advances and metadata.read_retention_start(home, dataset.name) is None
    return bool(plan.to_drop or is_first_run or list(plan.known_holds) != plan.holds)


def retention_status(home: Home, config: Config, store: StateStore, now: datetime) -> list[dict[str, Any]]:
    """Return for each dataset with a table: the period, held rows with sinks and dates, and undelivered drops.

    The warnings are about undelivered rows that will be dropped soon, and about a wrong clock.
    """
    found = []
    damaged = health.find_damaged_tables(home)
    for entry in metadata.list_tables(home):
        if entry.name not in datasets.list_names() or entry.name in damaged:
            continue
        dataset = datasets.get(entry.name)
        plan = plan_retention(home, config, store, dataset, now)
        files = list(metadata.iter_cached_files(metadata.read_metadata(entry.metadata)))
        warnings = describe_expiring(dataset.name, plan, now)
        if plan.first_day and (warning := clock_warning(home, store, dataset, now)):
            warnings.append(warning)
        with store.reading() as connection:
            drops = retention.list_drops(connection, dataset.name)
        done = [drop for drop in drops if drop.landed or not is_drop_outstanding(drop, files)]
        found.append(
            {
                "dataset": dataset.name,
                "days": days_kept(config, dataset),
                "first_day_kept": plan.first_day and plan.first_day.isoformat(),
                "rows_due": plan.rows_to_drop,
                "rows_held": plan.rows_held,
                "rows_without_time": plan.rows_without_time,
                "held": [held.as_json() for held in plan.held],
                "warnings": warnings,
                "dropped_undelivered": [drop.as_json() for drop in done],
            }
        )
    return found


def list_undelivered_drops(dataset: str, overdue: Iterable[HeldDay], at: datetime) -> list[RetentionDrop]:
    """Return one drop for each (source, day), even if several of its holds end together."""
    by_day: dict[tuple[str, date], list[HeldDay]] = defaultdict(list)
    for held in overdue:
        by_day[held.hold.source, held.hold.day].append(held)
    drops = []
    for (source, day), members in sorted(by_day.items()):
        last = _last_sequence(file for held in members for file in held.files)
        rows = sum(held.rows for held in members)
        drops.append(RetentionDrop(dataset, source, day, at, last, rows, _sinks(members)))
    return drops


def describe_holds(held: Sequence[HeldDay]) -> str:
    rows = format_count(sum(each.rows for each in held), "row")
    days = format_count(len({each.hold.day for each in held}), "day")
    return f"{rows} of {days} due to be dropped, held for {', '.join(_sinks(held))}"


def describe_expiring(dataset: str, plan: RetentionPlan, now: datetime) -> list[str]:
    """Return one warning for each group of sinks and each day on which rows will be dropped soon."""
    today = now.astimezone(UTC).date()
    groups: dict[tuple[tuple[str, ...], date], list[HeldDay]] = defaultdict(list)
    for held in plan.held:
        if (held.until - today).days <= plan.warn_days:
            groups[held.sinks, held.until].append(held)
    return [
        f"warning: {_describe_rows(dataset, members)} not been delivered to {', '.join(sinks)} and will be dropped on "
        f"{until}; to deliver them first, run: hyp export {' '.join(sinks)}"
        for (sinks, until), members in sorted(groups.items())
    ]


def describe_undelivered_drop(dataset: str, overdue: Sequence[HeldDay], *, dry_run: bool = False) -> str:
    be = "is" if sum(each.rows for each in overdue) == 1 else "are"
    verb = "would be dropped now" if dry_run else f"{be} dropped now"
    return (
        f"warning: {_describe_rows(dataset, overdue)} not been delivered to {', '.join(_sinks(overdue))} "
        f"within retention.max_hold_days and {verb}"
    )


def _describe_rows(dataset: str, held: Sequence[HeldDay]) -> str:
    rows = sum(each.rows for each in held)
    sources = ", ".join(sorted({each.hold.source for each in held}))
    days = sorted({each.hold.day for each in held})
    when = f"{days[0]}" if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f"{format_count(rows, 'row')} of {dataset} ({sources}, {when}) {'has' if rows == 1 else 'have'}"


def _sinks(held: Iterable[HeldDay]) -> tuple[str, ...]:
    return tuple(sorted({sink for each in held for sink in each.sinks}))


def is_drop_outstanding(drop: RetentionDrop, files: Iterable[DataFile]) -> bool:
    return any(
        (file.source, file.day) == (drop.source, drop.day) and (file.min_seq is None or file.min_seq <= drop.through)
        for file in files
    )
