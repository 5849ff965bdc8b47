"""Dates as a user writes them: a day (`2026-11-15`), a time (`2026-11-15T08:00Z`) or an age (`12h`, `7d`)."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta, tzinfo

from hypaware.errors import UsageError

_AGO = re.compile(r"([0-9]{1,9})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
# Of ISO 8601's date forms only calendar days: a week or a month does not name one day.
_DAY = re.compile(r"[0-9]{4}-?[0-9]{2}-?[0-9]{2}")


def parse_date(
    option: str, text: str | None, time_of_a_day: time, now: datetime, zone: tzinfo = UTC
) -> datetime | None:
    """Parse a date option and return it in UTC.

    A day gets the `time_of_a_day`. A day, and a time without an offset, are in the zone.
    """
    if text is None:
        return None
    written = text.strip()
    try:
        if ago := _AGO.fullmatch(written):
            return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        if not _DAY.match(written):
            raise ValueError
        if _DAY.fullmatch(written):
            return datetime.combine(date.fromisoformat(written), time_of_a_day, zone).astimezone(UTC)
        found = datetime.fromisoformat(written)
        return (found if found.tzinfo else found.replace(tzinfo=zone)).astimezone(UTC)
    except OverflowError:
        from hypaware.model.columns import preview

        raise UsageError(f"{option} {preview(text)} is outside the years 1 to 9999") from None
    except ValueError:
        from hypaware.model.columns import preview

        raise UsageError(
            f"{option} {preview(text)} is not a date; write 2026-11-15, 2026-11-15T08:00:00Z, or an age: 7d, 12h"
        ) from None
