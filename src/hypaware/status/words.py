"""Numbers and times as people say them."""

from __future__ import annotations

from datetime import UTC, datetime

_UNITS = ((86_400.0, "day"), (3600.0, "hour"), (60.0, "minute"), (1.0, "second"))


def count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def size(number: float) -> str:
    """1,023 bytes, 1.5 MiB, 34 GiB."""
    if number < 1024:
        return count(int(number), "byte")
    units = ["KiB", "MiB", "GiB", "TiB"]
    number /= 1024
    while number >= 1023.5 and len(units) > 1:
        number, units = number / 1024, units[1:]
    return f"{number:.1f} {units[0]}" if number < 9.95 else f"{number:,.0f} {units[0]}"


def duration(seconds: float) -> str:
    """In the largest unit of which there is more than one and a half."""
    for length, unit in _UNITS:
        if seconds >= 1.5 * length:
            return count(round(seconds / length), unit)
    return "1 second" if seconds >= 0.5 else "a moment"


def moment(text: object) -> datetime | None:
    """A time as the home's files hold them; None where it is none."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def ago(text: object, now: datetime) -> str:
    then = moment(text)
    if then is None:
        return "at an unknown time"
    seconds = (now - then).total_seconds()
    return f"{duration(seconds)} ago" if seconds >= 0 else f"at {then:%Y-%m-%d %H:%M} (UTC), which is to come"
