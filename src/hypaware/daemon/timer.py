"""Decide when a schedule is due, by a wall clock that may jump forward or back or skip a sleep of the machine.

Missed times are due once, however many have passed. If the clock is set back, the next time follows the schedule from
the new present.
"""

from __future__ import annotations

from datetime import datetime

from hypaware.export.schedule import next_round


class Timer:
    def __init__(self, schedule: str, now: datetime) -> None:
        self._schedule = schedule
        self.next = next_round(schedule, now)

    def is_due(self, now: datetime) -> bool:
        """Return whether a scheduled time has passed, and advance to the next one."""
        due = now >= self.next
        following = next_round(self._schedule, now)
        if due or following < self.next:
            self.next = following
        return due
