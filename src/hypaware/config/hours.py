"""A daily period in local time, such as `22:00-07:00`. It may extend past midnight."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import time

_HOURS = re.compile(r"([0-9]{1,2}):([0-9]{2})\s*-\s*([0-9]{1,2}):([0-9]{2})")


@dataclass(frozen=True)
class Hours:
    begin: time
    end: time
    """The period ends just before this time."""

    def contains(self, moment: time) -> bool:
        if self.begin <= self.end:
            return self.begin <= moment < self.end
        return moment >= self.begin or moment < self.end

    def __str__(self) -> str:
        return f"{self.begin:%H:%M}-{self.end:%H:%M}"


def parse(text: str) -> Hours:
    """Parse a period such as `22:00-07:00`. Raise ValueError if it is invalid."""
    match = _HOURS.fullmatch(text)
    if not match:
        raise ValueError
    begin, end = time(int(match[1]), int(match[2])), time(int(match[3]), int(match[4]))
    if begin == end:
        raise ValueError("it begins and ends at the same time")
    return Hours(begin, end)
