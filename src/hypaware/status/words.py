"""Format numbers, sizes and times for people."""

from __future__ import annotations

from datetime import UTC, datetime

_UNITS = ((86_400.0, "day"), (3600.0, "hour"), (60.0, "minute"), (1.0, "second"))


def count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def size(number: float) -> str:
    """Format a number of bytes: 1,023 bytes, 1.5 MiB, 34 GiB."""
    if number < 1024:
        return count(int(number), "byte")
    units = ["KiB", "MiB", "GiB", "TiB"]
    number /= 1024
    while number >= 1023.5 and len(units) > 1:
        number, units = number / 1024, units[1:]
    return f"{number:.1f} {units[0]}" if number < 9.95 else f"{number:,.0f} {units[0]}"


def duration(seconds: float) -> str:
    """Format a duration in the largest unit that it is at least one and a half of."""
    for length, unit in _UNITS:
        if seconds >= 1.5 * length:
            return count(round(seconds / length), unit)
    return "1 second" if seconds >= 0.5 else "a moment"


def moment(text: object) -> datetime | None:
    """Parse an ISO 8601 time, in UTC if it has no offset; return None if it is not a time."""
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def ago(text: object, now: datetime) -> str:
    then = moment(text)
    if then is None:
        return "at an unknown time"
    seconds = (now - then).total_seconds()
    return f"{duration(seconds)} ago" if seconds >= 0 else f"at {then:%Y-%m-%d %H:%M} (UTC), in the future"
