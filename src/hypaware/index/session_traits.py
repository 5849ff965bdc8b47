"""Filters for sessions by what they did within the window: at which hour they were active, and what else they used.

They choose sessions, as `tool` and `failed` do: figures are those of the sessions that are chosen. The window and the
other filters count, to a quarter of an hour: a session is active at an hour if it has a message then, of that project
and model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hypaware.errors import UsageError
from hypaware.index.schema import SLOT
from hypaware.index.time_zones import day_sql, hour_sql
from hypaware.text import escape_cell

if TYPE_CHECKING:
    from sqlite3 import Connection

    from hypaware.index.filters import Filters

WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_COLUMNS = {"project": "a.cwd", "model": "a.model", "client": "s.client", "machine": "s.machine"}
_HAS_TOKENS = "a.input + a.output + a.cache_read + a.cache_write > 0"


class OtherNames(NamedTuple):
    """Sessions with tokens of another project, model, client or machine than these; an empty name stands for rows
    without one. As text: the key and the names, one on each line."""

    key: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join((self.key, *self.names))


def parse_others(text: str) -> OtherNames:
    """Raise UsageError if the text is not that of `OtherNames`."""
    key, *names = text.split("\n")
    if key not in _COLUMNS or not names:
        raise UsageError(
            f"others={escape_cell(text[:60])} does not begin with {', '.join(_COLUMNS)} and a line of each"
        )
    return OtherNames(key, tuple(names))


def parse_weekday(text: str) -> int:
    """Return 0 for mon to 6 for sun. Raise UsageError if it is none of them."""
    if text not in WEEKDAYS:
        raise UsageError(f"weekday={escape_cell(text[:60])} is not a day of the week; write {', '.join(WEEKDAYS)}")
    return WEEKDAYS.index(text)


def parse_hour(text: str) -> int:
    """Raise UsageError if it is not an hour of the day."""
    if not (text.isascii() and text.isdigit() and len(text) <= 2 and int(text) < 24):
        raise UsageError(f"hour={escape_cell(text[:60])} is not an hour of the day; write 0 to 23")
    return int(text)


def list_trait_terms(connection: Connection, filters: Filters, in_activity: list[str]) -> list[str]:
    """Return conditions over a row s of `sessions`. `in_activity` are those of the project and the model over a."""
    within = list(in_activity)
    if filters.since is not None:
        within.append(f"a.slot >= {filters.since // SLOT}")
    if filters.until is not None:
        within.append(f"a.slot <= {filters.until // SLOT}")
    found = []
    if filters.weekday is not None or filters.hour is not None:
        at_hour = ["a.messages > 0"]
        span = connection.execute("SELECT (SELECT min(slot) FROM activity), (SELECT max(slot) FROM activity)")
        first, last = (each or 0 for each in span.fetchone())
        if filters.weekday is not None:
            # The first day of 1970 is a Thursday.
            at_hour.append(f"({day_sql(filters.timezone, first, last, 'a.slot')} + 3) % 7 = {filters.weekday}")
        if filters.hour is not None:
            at_hour.append(f"{hour_sql(filters.timezone, first, last, 'a.slot')} % 24 = {filters.hour}")
        found.append(at_hour)
    if filters.others is not None:
        key, names = filters.others
        marks = ", ".join("?" * len(names))
        ids = [str(row[0]) for row in connection.execute(f"SELECT id FROM names WHERE name IN ({marks})", names)]
        ids += ["0"] if "" in names else []
        found.append([_HAS_TOKENS, f"coalesce({_COLUMNS[key]}, 0) NOT IN ({', '.join(ids)})"])
    return [
        f"EXISTS (SELECT 1 FROM activity a WHERE a.session = s.id AND {' AND '.join([*terms, *within])})"
        for terms in found
    ]
