"""A part of every day, by the machine's own clock: `22:00-07:00`. It may reach beyond midnight."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import time

_HOURS = re.compile(r"([0-9]{1,2}):([0-9]{2})\s*-\s*([0-9]{1,2}):([0-9]{2})")


@dataclass(frozen=True)
class Hours:
    begin: time
    end: time
    """The first moment that is no part of it."""

    def hold(self, moment: time) -> bool:
        if self.begin <= self.end:
            return self.begin <= moment < self.end
        return moment >= self.begin or moment < self.end

    def __str__(self) -> str:
        return f"{self.begin:%H:%M}-{self.end:%H:%M}"


def parse(text: str) -> Hours:
    """Raises ValueError."""
    found = _HOURS.fullmatch(text)
    if not found:
        raise ValueError
    first, last = time(int(found[1]), int(found[2])), time(int(found[3]), int(found[4]))
    if first == last:
        raise ValueError("it begins and ends at the same time")
    return Hours(first, last)
