"""When a sink's next round is: five cron fields in UTC, as `config.cron` takes them."""

from __future__ import annotations

from datetime import UTC, datetime

from cronsim import CronSim


def next_round(schedule: str, after: datetime) -> datetime:
    """The first time later than `after`, which has a zone."""
    minute, hour, day, month, weekday = schedule.split(" ")
    # Cron implementations disagree on `*/2` beside a weekday; ours says OR unless a field is `*` itself.
    fields = (minute, hour, day.replace("*/", "1-31/"), month, weekday.replace("*/", "0-6/"))
    found: datetime = next(CronSim(" ".join(fields), after.astimezone(UTC)))
    return found
