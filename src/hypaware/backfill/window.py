"""Parse the date options of a command into a time window.

A date is ISO 8601 (a day alone means the whole day in UTC; a time without a zone is UTC) or an age: `30m`, `12h`,
`7d`, `2w`. Retention bounds the window like `since`; the later of the two applies. Anything else is rejected, never
guessed.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta

from hypaware.backfill.pinned import Window
from hypaware.errors import UsageError
from hypaware.model.columns import shown, timestamp_text

_AGO = re.compile(r"([0-9]{1,9})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
# Of ISO 8601's date forms only calendar days: a week or a month does not name one day.
_DAY = re.compile(r"[0-9]{4}-?[0-9]{2}-?[0-9]{2}")


def resolve(
    since: str | None, until: str | None, retention_days: int | None, config_default_days: int, now: datetime
) -> Window:
    """Return the window of the options; `now` must be timezone-aware. A retention of 0 days means no limit."""
    earliest = moment("--since", since, time.min, now)
    latest = moment("--until", until, time.max, now)
    if earliest and latest and earliest > latest:
        raise UsageError(f"--since {since} is after --until {until}")
    bound = _retained_from(retention_days, config_default_days, now)
    if bound and latest and bound > latest:
        raise UsageError(
            f"--until {until} is before the start of the retention period ({timestamp_text(bound)})",
            repair="hyp backfill --retention-days 0",
        )
    if bound and (earliest is None or bound > earliest):
        earliest = bound
    return Window(timestamp_text(earliest) if earliest else None, timestamp_text(latest) if latest else None)


def _retained_from(given: int | None, default: int, now: datetime) -> datetime | None:
    days = default if given is None else given
    if days < 0:
        raise UsageError(f"--retention-days is {days}; it must be 0 (no limit) or more")
    try:
        return now - timedelta(days=days) if days else None
    except OverflowError:
        return None


def moment(option: str, text: str | None, time_of_a_day: time, now: datetime) -> datetime | None:
    """Parse a date option; `time_of_a_day` is the time that a day without one gets."""
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
        raise UsageError(f"{option} {shown(text)} is outside the years 1 to 9999") from None
    except ValueError:
        raise UsageError(
            f"{option} {shown(text)} is not a date; write 2026-11-15, 2026-11-15T08:00:00Z, or an age such as 7d or 12h"
        ) from None
