"""Addresses of the page: the filters of a view and links that keep them, and where a session and its messages are.

The names are those of the commands' options, so that a view and its command read the same: `days=30` are the last 30
days with today, `days=all` is all time, and `since` and `until` replace both. `tool` and `failed` are names of tools
that a session has called, and that have failed in it. `weekday=mon` and `hour=14` are when it was active, `others` is a
key and names: sessions with something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, time, timedelta
from hashlib import sha256
from urllib.parse import quote, urlencode

from hypaware.errors import UsageError
from hypaware.index.filters import Filters, make_filters, to_moment
from hypaware.index.session_traits import parse_hour, parse_others, parse_weekday
from hypaware.text import escape_cell

_TRAITS = ("weekday", "hour", "others")
FILTERS = (
    *("project", "client", "model", "machine", "person", "tool", "failed"),
    *_TRAITS,
    *("days", "since", "until", "timezone"),
)
ALL_DAYS = "all"
PLACES = ("before", "offset")
"""Where a page of a list begins. Links to a changed view begin at its first page."""
_NAMES = tuple(name for name in FILTERS if name not in ("days", *_TRAITS))
_MAX_DAYS = 36_500
_ANCHOR_DIGITS = 16


def read_filters(query: Mapping[str, str], *, default_days: int | None = None, now: datetime | None = None) -> Filters:
    """Return the filters of an address; without days and dates, those of the last `default_days`.

    Raise UsageError for an invalid number of days, date, zone, weekday or hour.
    """
    moment = now or datetime.now(UTC)
    given = {name: query[name] for name in _NAMES if query.get(name)}
    try:
        filters = make_filters(**given, now=moment)
    except RuntimeError:
        # `~name` of a user that does not exist.
        raise UsageError(f"the project {escape_cell(given['project'])} is not a folder") from None
    if any(query.get(name) for name in _TRAITS):
        filters = filters._replace(
            weekday=parse_weekday(query["weekday"]) if query.get("weekday") else None,
            hour=parse_hour(query["hour"]) if query.get("hour") else None,
            others=parse_others(query["others"]) if query.get("others") else None,
        )
    days = read_days(query, default_days)
    if filters.has_window or days is None:
        return filters
    first = moment.astimezone(filters.timezone).date() - timedelta(days=days - 1)
    return filters._replace(since=to_moment(datetime.combine(first, time.min, filters.timezone)))


def read_days(query: Mapping[str, str], default: int | None = None) -> int | None:
    """Return the number of days of an address, None for all time or if it has dates instead."""
    if query.get("since") or query.get("until"):
        return None
    text = query.get("days")
    if not text:
        return default
    if text == ALL_DAYS:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_MAX_DAYS)) and 1 <= int(text) <= _MAX_DAYS):
        raise UsageError(f"days={escape_cell(text)} is not a number of days; write days=30, or days=all")
    return int(text)


class Linker:
    """Makes links from one view to others that keep its filters."""

    def __init__(self, path: str, query: Mapping[str, str]) -> None:
        self._path = path
        self._query = query

    def __call__(self, path: str | None = None, **changes: str | int | None) -> str:
        """Return the address of a view with the current filters, some of them changed, or removed by None.

        Parameters that are not filters (such as sort) are kept only within the same view. Days replace dates, and dates
        replace days.
        """
        target = path or self._path
        kept = {
            name: value
            for name, value in self._query.items()
            if value and name not in PLACES and (name in FILTERS or target == self._path)
        }
        if "since" in kept or "until" in kept:
            kept.pop("days", None)
        if "days" in changes:
            changes = {"since": None, "until": None, **changes}
        elif "since" in changes or "until" in changes:
            changes = {"days": None, **changes}
        return make_address(target, {**kept, **changes})


def make_address(path: str, values: Mapping[str, str | int | None]) -> str:
    text = urlencode({name: value for name, value in values.items() if value not in (None, "")}, errors="replace")
    return f"{path}?{text}" if text else path


def session_path(session_id: str) -> str:
    """Return the path of a session's view. The id can contain any characters."""
    return f"/sessions/{quote(session_id, safe='')}"


def message_anchor(message_id: str) -> str:
    """Return the id of the element that shows a message: an id that is safe in markup and addresses."""
    digest = sha256(message_id.encode("utf-8", "surrogatepass")).hexdigest()
    return f"m-{digest[:_ANCHOR_DIGITS]}"


def message_path(session_id: str, message_id: str) -> str:
    """Return the permalink of a message."""
    return f"{session_path(session_id)}#{message_anchor(message_id)}"
