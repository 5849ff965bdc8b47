"""The time of a sink's next round: five cron fields in UTC, as `config.cron` accepts them."""

from __future__ import annotations

from datetime import UTC, datetime

from cronsim import CronSim


def next_round(schedule: str, after: datetime) -> datetime:
    """Return the first time of the schedule (five cron fields in UTC) later than `after`, which has a time zone."""
    minute, hour, day, month, weekday = schedule.split(" ")
    # Cron implementations disagree on `*/2` together with a weekday. Here days combine with OR unless a field is `*`.
    fields = (minute, hour, day.replace("*/", "1-31/"), month, weekday.replace("*/", "0-6/"))
    found: datetime = next(CronSim(" ".join(fields), after.astimezone(UTC)))
    return found
