"""The time that the overview shows: its first and last day, the steps of its chart, and the period before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from hypaware.index.filters import Filters, to_datetime, to_moment
from hypaware.index.trends import choose_step
from hypaware.page.address import read_days, read_filters

DEFAULT_DAYS = 30
_CALENDAR_WEEKS = 53
_DAY = 86_400 * 1_000_000
_FIRST_DAY = date(1970, 1, 1)


@dataclass(frozen=True)
class OverviewWindow:
    filters: Filters
    now: datetime
    days: int | None
    """The number of days if the window is the last days with today."""

    @property
    def zone(self) -> ZoneInfo:
        return self.filters.timezone

    @property
    def first_day(self) -> int | None:
        """Days since 1970; None if the window has no beginning."""
        return None if self.filters.since is None else self._day_of(self.filters.since)

    @property
    def last_day(self) -> int:
        today = (self.now.astimezone(self.zone).date() - _FIRST_DAY).days
        return today if self.filters.until is None else self._day_of(self.filters.until)

    @property
    def step(self) -> str | None:
        """What the chart is by: hour, day or week; None if it depends on what is recorded."""
        if (first := self.first_day) is None:
            return None
        return "hour" if self.last_day - first <= 1 else choose_step(first, self.last_day)

    @property
    def calendar(self) -> tuple[int, int]:
        """The first and last day of the calendar: a year of whole weeks that ends with the window."""
        return self.last_day - to_day(self.last_day).weekday() - 7 * (_CALENDAR_WEEKS - 1), self.last_day

    @property
    def calendar_moments(self) -> tuple[int, int]:
        first, last = self.calendar
        end = datetime.combine(to_day(last), time.max, self.zone)
        return to_moment(datetime.combine(to_day(first), time.min, self.zone)), to_moment(end)

    @property
    def before(self) -> tuple[int, int] | None:
        """The period of the same length before, in moments. Of today, it has the part that is over."""
        since, until, now = self.filters.since, self.filters.until, to_moment(self.now)
        if since is None or since >= now:
            return None
        if self.days is not None:
            return since - self.days * _DAY, now - self.days * _DAY
        length = (now if until is None else min(until, now)) - since
        return (since - length - 1, since - 1) if length > 0 else None

    @property
    def before_name(self) -> str:
        if self.days is None:
            return "the same length of time before"
        return "yesterday until this hour" if self.days == 1 else f"the {self.days} days before"

    def _day_of(self, moment: int) -> int:
        return (to_datetime(moment).astimezone(self.zone).date() - _FIRST_DAY).days


def read_window(query: Mapping[str, str], now: datetime, *, default_days: int | None = DEFAULT_DAYS) -> OverviewWindow:
    """Return the window of an address. Raise UsageError if it is invalid."""
    return OverviewWindow(read_filters(query, default_days=default_days, now=now), now, read_days(query, default_days))


def to_day(number: int) -> date:
    return _FIRST_DAY + timedelta(days=number)
