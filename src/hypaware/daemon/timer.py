"""When a schedule is due, by a wall clock that may jump: over a sleep of the machine, forward, or back.

A time that was missed is due once, however many have passed. A clock that went back does not make the next time later
than the schedule says for the new present.
"""

from __future__ import annotations

from datetime import datetime

from hypaware.export.schedule import next_round


class Timer:
    def __init__(self, schedule: str, now: datetime) -> None:
        self._schedule = schedule
        self.next = next_round(schedule, now)

    def is_due(self, now: datetime) -> bool:
        """True once for what has come; the next time is then later than now."""
        due = now >= self.next
        following = next_round(self._schedule, now)
        if due or following < self.next:
            self.next = following
        return due
