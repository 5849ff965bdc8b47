"""Validates cron schedules: five fields (minute, hour, day of month, month, day of week), in UTC.

A field is `*`, a number, a range `a-b`, a step `*/n` or `a-b/n`, or a comma-separated list of these. Weekdays are 0 to
7; both 0 and 7 are Sunday. As in every cron, if neither day field is `*`, a day matches if either of them matches.
"""

from __future__ import annotations

import re

_FIELDS = (
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day of month", 1, 31),
    ("month", 1, 12),
    ("day of week", 0, 7),
)
_LAST_DAY = {2: 29, 4: 30, 6: 30, 9: 30, 11: 30}
_ITEM = re.compile(r"(?:\*|(\d{1,2})(?:-(\d{1,2}))?)(?:/(\d{1,4}))?")


def check(schedule: str) -> None:
    """Raise ValueError, with the invalid field and the reason, unless the schedule is valid."""
    fields = schedule.split(" ")
    if len(fields) != len(_FIELDS):
        raise ValueError(f"it has {len(fields)} fields; expected 5, separated by single spaces")
    _minutes, _hours, days, months, _weekdays = (
        _values(field, *limits) for field, limits in zip(fields, _FIELDS, strict=True)
    )
    if fields[4] == "*" and all(min(days) > _LAST_DAY.get(month, 31) for month in months):
        raise ValueError("no date matches it")


def _values(field: str, name: str, low: int, high: int) -> set[int]:
    values: set[int] = set()
    for item in field.split(","):
        match = _ITEM.fullmatch(item)
        if not match:
            raise ValueError(f"{item!r} is not a {name}")
        first, last, step = match.groups()
        if step is not None and first is not None and last is None:
            raise ValueError(f"the step in {item!r} needs a range, such as */{step} or {first}-{high}/{step}")
        start = int(first) if first else low
        end = int(last or first) if first else high
        if not low <= start <= end <= high:
            raise ValueError(f"{item!r} is not a {name} from {low} to {high}")
        if step is not None and int(step) == 0:
            raise ValueError(f"the step in {item!r} is 0")
        values.update(range(start, end + 1, int(step or 1)))
    return values
