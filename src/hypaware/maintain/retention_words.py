"""Messages of retention: days dropped, rows held, rows about to be dropped undelivered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import date

from hypaware.maintain.holds import Held


def dropped(rows: int, days: int, first_day: date | None, *, dry_run: bool) -> str:
    verb = "would drop" if dry_run else "dropped"
    return f"{verb} {count(rows)} of {_days(days)} before {first_day}"


def waiting(held: Sequence[Held]) -> str:
    sinks = ", ".join(sorted({sink for each in held for sink in each.sinks}))
    days = len({each.hold.day for each in held})
    return f"{count(sum(each.rows for each in held))} of {_days(days)} due to be dropped, held for {sinks}"


def warnings(dataset: str, expiring_soon: Iterable[Held]) -> list[str]:
    """Return one warning for each group of sinks and each day on which rows will be dropped."""
    groups: dict[tuple[tuple[str, ...], date], list[Held]] = defaultdict(list)
    for held in expiring_soon:
        groups[held.sinks, held.until].append(held)
    return [
        f"warning: {_what(dataset, members)} not been delivered to {', '.join(sinks)} and will be dropped on {until}; "
        f"to deliver them first, run: hyp export {' '.join(sinks)}"
        for (sinks, until), members in sorted(groups.items())
    ]


def dropping(dataset: str, overdue: Sequence[Held], *, dry_run: bool = False) -> str:
    sinks = ", ".join(sorted({sink for each in overdue for sink in each.sinks}))
    be = "is" if sum(each.rows for each in overdue) == 1 else "are"
    verb = "would be dropped now" if dry_run else f"{be} dropped now"
    return f"warning: {_what(dataset, overdue)} not been delivered to {sinks} within retention.max_hold_days and {verb}"


def _what(dataset: str, held: Sequence[Held]) -> str:
    rows = sum(each.rows for each in held)
    sources = ", ".join(sorted({each.hold.source for each in held}))
    days = sorted({each.hold.day for each in held})
    when = f"{days[0]}" if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f"{count(rows)} of {dataset} ({sources}, {when}) {'has' if rows == 1 else 'have'}"


def count(rows: int) -> str:
    return "1 row" if rows == 1 else f"{rows:,} rows"


def _days(number: int) -> str:
    return "1 day" if number == 1 else f"{number} days"
