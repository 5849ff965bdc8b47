"""From what a user writes as dates to the window of an import.

A date is ISO 8601 (a day alone is all of it, in UTC; a time without a zone is UTC) or so long ago: `30m`, `12h`, `7d`,
`2w`. Retention is a bound like `since`; the later of the two holds. What cannot be understood is refused, never
guessed at.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta

from hypaware.backfill.pinned import Window
from hypaware.errors import UsageError
from hypaware.model.columns import shown, timestamp_text

_AGO = re.compile(r"([0-9]{1,9})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
# Of all that ISO 8601 knows, days of the calendar: a week or a month alone has no one end.
_DAY = re.compile(r"[0-9]{4}-?[0-9]{2}-?[0-9]{2}")


def resolve(
    since: str | None, until: str | None, retention_days: int | None, config_default_days: int, now: datetime
) -> Window:
    """The window that the options ask for; `now` is aware. 0 days of retention are no limit."""
    earliest = moment("--since", since, time.min, now)
    latest = moment("--until", until, time.max, now)
    if earliest and latest and earliest > latest:
        raise UsageError(f"--since {since} is after --until {until}")
    bound = _retained_from(retention_days, config_default_days, now)
    if bound and latest and bound > latest:
        raise UsageError(
            f"--until {until} is earlier than anything that retention keeps ({timestamp_text(bound)})",
            repair="hyp backfill --retention-days 0",
        )
    if bound and (earliest is None or bound > earliest):
        earliest = bound
    return Window(timestamp_text(earliest) if earliest else None, timestamp_text(latest) if latest else None)


def _retained_from(given: int | None, default: int, now: datetime) -> datetime | None:
    days = default if given is None else given
    if days < 0:
        raise UsageError(f"--retention-days is {days}; it is a whole number from 0, which is no limit")
    try:
        return now - timedelta(days=days) if days else None
    except OverflowError:
        return None


def moment(option: str, text: str | None, time_of_a_day: time, now: datetime) -> datetime | None:
    """What an option of a command says; a day alone means that time of it."""
    if text is None:
        return None
    written = text.strip()
    try:
        if ago := _AGO.fullmatch(written):
            return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        if not _DAY.match(written):
            raise ValueError
        if _DAY.fullmatch(written):
            return datetime.combine(date.fromisoformat(written), time_of_a_day, UTC)
        found = datetime.fromisoformat(written)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except OverflowError:
        raise UsageError(f"{option} {shown(text)} lies outside the years 1 to 9999") from None
    except ValueError:
        raise UsageError(
            f"{option} {shown(text)} is no date: write 2026-11-15, 2026-11-15T08:00:00Z, or so long ago: 7d, 12h"
        ) from None
