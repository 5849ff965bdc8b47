"""The filters that all reading commands share, and their SQL over the tables of the index.

A row matches if its session is of the client and the machine and has called the tool, and its own folder, model and
time match. A session matches if it has such a row. `since` and `until` are moments, both inclusive: whole slots inside
the window are read from the sums, the slots that the window cuts from `parts`.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, time, timedelta
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from zoneinfo import ZoneInfo

from hypaware.errors import UsageError
from hypaware.index.schema import FIRST_MONTH, LAST_MONTH, SLOT
from hypaware.index.session_traits import OtherNames, list_trait_terms
from hypaware.index.time_zones import find_zone, list_offsets
from hypaware.model.dates import parse_date

if TYPE_CHECKING:
    from sqlite3 import Connection

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_DAY = 86_400 * 1_000_000
MAX_SLOT = (1 << 62) // SLOT
_SLOT_SECONDS = SLOT // 1_000_000
_FIRST_REGULAR = 10**14
"""From this moment, in 1973, the offset of every zone is a multiple of a quarter of an hour."""


CHOICES = ("project", "client", "model", "machine")
_MOST_CHOICES = 200
_LONGEST_CHOICE = 500
"""Longer names, which only hostile rows have, cannot be chosen."""
_CHOICE_STATEMENTS = {
    "project": "SELECT cwd, count(DISTINCT session) FROM totals GROUP BY 1",
    "model": "SELECT model, count(DISTINCT session) FROM totals GROUP BY 1",
    "client": "SELECT client, count(*) FROM sessions GROUP BY 1",
    "machine": "SELECT machine, count(*) FROM sessions GROUP BY 1",
}


class Filters(NamedTuple):
    project: str | None = None
    """An absolute path (the folder itself, and folders below it), or the last folders of a path."""
    client: str | None = None
    model: str | None = None
    """The beginning of a model's name."""
    since: int | None = None
    """Microseconds since 1970; inclusive, like `until`."""
    until: int | None = None
    machine: str | None = None
    person: str | None = None
    """The label of the token that a machine enrolled with; only a server knows it. See `hypaware.state.machines`."""
    tool: str | None = None
    """A tool that the session has called, at any time."""
    failed: str | None = None
    """A tool that has failed in the session."""
    weekday: int | None = None
    """A day of the week, 0 is Monday, on which the session was active. See `hypaware.index.session_traits`."""
    hour: int | None = None
    """An hour of the day at which the session was active; with `weekday`, the hour of that day."""
    others: OtherNames | None = None
    """Something else than these names that the session has used."""
    excluded: frozenset[int] = frozenset()
    """Numbers of sessions (`sessions.id`) that never match."""
    timezone: ZoneInfo = ZoneInfo("UTC")

    @property
    def has_window(self) -> bool:
        return self.since is not None or self.until is not None

    @property
    def is_empty(self) -> bool:
        values = (self.project, self.client, self.model, self.since, self.until, self.machine, self.person)
        traits = (self.tool, self.failed, self.weekday, self.hour, self.others)
        return all(value is None for value in (*values, *traits)) and not self.excluded


def make_filters(
    *,
    project: str | None = None,
    client: str | None = None,
    model: str | None = None,
    since: str | datetime | None = None,
    until: str | datetime | None = None,
    machine: str | None = None,
    person: str | None = None,
    tool: str | None = None,
    failed: str | None = None,
    timezone: str | None = None,
    now: datetime | None = None,
) -> Filters:
    """Return the filters of options. A day begins and ends in the time zone, by default the user's own.

    A project that starts with `/`, `~` or `.` is a path. Raise UsageError for an invalid date or zone, and if `since`
    is after `until`.
    """
    zone = find_zone(timezone)
    moment = now or datetime.now(UTC)
    first = _to_moment("since", since, time.min, moment, zone)
    last = _to_moment("until", until, time.max, moment, zone)
    if first is not None and last is not None and first > last:
        raise UsageError(f"--since {since} is after --until {until}")
    if project is not None and project.startswith(("/", "~", ".")):
        # Not resolved: the folder may be gone, and rows hold the path as the client saw it.
        project = os.path.normpath(Path.cwd() / Path(project).expanduser())
    return Filters(
        project=project,
        client=client,
        model=model,
        since=first,
        until=last,
        machine=machine,
        person=person,
        tool=tool,
        failed=failed,
        timezone=zone,
    )


def _to_moment(
    name: str, given: str | datetime | None, time_of_a_day: time, now: datetime, zone: ZoneInfo
) -> int | None:
    if isinstance(given, datetime):
        found: datetime | None = given if given.tzinfo else given.replace(tzinfo=zone)
    else:
        found = parse_date(f"--{name}", given, time_of_a_day, now, zone)
    return None if found is None else to_moment(found)


def to_moment(time: datetime) -> int:
    return (time - _EPOCH) // _MICROSECOND


def to_datetime(moment: int) -> datetime:
    return _EPOCH + timedelta(microseconds=moment)


def to_text(moment: int | None) -> str | None:
    """Return a moment as ISO 8601 text in UTC, as in every JSON document."""
    if moment is None:
        return None
    # Without objects of time: this is called twice for every session.
    seconds, fraction = divmod(moment, 1_000_000)
    minutes, second = divmod(seconds, 60)
    day, minute = divmod(minutes, 1440)
    if fraction:
        return f"{_DAYS[day]}T{_CLOCK[minute]}:{second:02}.{fraction:06}Z"
    return f"{_DAYS[day]}T{_CLOCK[minute]}:{second:02}Z"


def format_moments(moments: Sequence[int | None], zone: ZoneInfo) -> list[str]:
    """Return moments as ISO 8601 text to the second, in the time zone; a dash for none."""
    known = [moment for moment in moments if moment is not None]
    if len(known) < len(moments) or min(known, default=0) < _FIRST_REGULAR:
        return [
            "-" if each is None else to_datetime(each).astimezone(zone).isoformat(timespec="seconds")
            for each in moments
        ]
    # Without a time zone for each, and by columns: there can be many.
    periods = list_offsets(zone, min(known) // SLOT, max(known) // SLOT)
    begins = [begin * SLOT for begin, _ in periods[1:]]
    offsets = [(offset * _SLOT_SECONDS, _offset_text(offset)) for _, offset in periods]
    chosen = [offsets[bisect_right(begins, each)] for each in known] if begins else offsets * len(known)
    local = [each // 1_000_000 + offset for each, (offset, _) in zip(known, chosen, strict=True)]
    times = map(datetime.isoformat, map(_NAIVE_EPOCH.__add__, map(timedelta, repeat(0), local)))
    return [time + suffix for time, (_, suffix) in zip(times, chosen, strict=True)]


def _offset_text(slots: int) -> str:
    hours, quarters = divmod(abs(slots), 4)
    return f"{'-' if slots < 0 else '+'}{hours:02}:{quarters * 15:02}"


class _DayTexts(dict[int, str]):
    """The days since 1970 as text, made when they are first asked for."""

    def __missing__(self, day: int) -> str:
        self[day] = text = (_NAIVE_EPOCH + timedelta(days=day)).date().isoformat()
        return text


class _ClockTexts(dict[int, str]):
    """The minutes of a day as text, made when they are first asked for."""

    def __missing__(self, minute: int) -> str:
        self[minute] = text = f"{minute // 60:02}:{minute % 60:02}"
        return text


_DAYS, _CLOCK = _DayTexts(), _ClockTexts()


def month_of(at: int) -> str:
    """Return the month (YYYYMM) whose full-text table holds a row of this moment."""
    return _month_of_day(at // _DAY)


@lru_cache(maxsize=4096)
def _month_of_day(day: int) -> str:
    try:
        moment = _EPOCH + timedelta(days=day)
    except OverflowError:
        return FIRST_MONTH if day < 0 else LAST_MONTH
    return min(max(f"{moment.year:04d}{moment.month:02d}", FIRST_MONTH), LAST_MONTH)


class Condition(NamedTuple):
    """A condition for a WHERE clause. The values are named, so that it can be used several times in a statement."""

    sql: str
    values: dict[str, Any]


class SlotWindow(NamedTuple):
    """A window as slots: those that it contains as a whole, and those that it cuts."""

    first: int
    last: int
    cut: tuple[int, ...]


def split_window(filters: Filters) -> SlotWindow:
    since, until = filters.since, filters.until
    first = 0 if since is None else -(-since // SLOT)
    last = MAX_SLOT if until is None else (until + 1) // SLOT - 1
    cut = set()
    if since is not None and since % SLOT:
        cut.add(since // SLOT)
    if until is not None and (until + 1) % SLOT:
        cut.add(until // SLOT)
    return SlotWindow(first, last, tuple(sorted(cut)))


def filter_rows(connection: Connection, filters: Filters) -> Condition:
    """Return the condition for rows of `parts` as p, joined with `sessions` as s."""
    terms, values = _session_terms(connection, filters)
    terms += _name_terms(connection, filters, "p")
    if filters.since is not None:
        terms.append("p.at >= :since")
    if filters.until is not None:
        terms.append("p.at <= :until")
    return Condition(_join(terms), {**values, "since": filters.since, "until": filters.until})


def filter_totals(connection: Connection, filters: Filters) -> Condition:
    """Return the condition for rows of `activity` or `totals` as a, joined with `sessions` as s, for any time.

    Its values include `first_slot` and `last_slot`: the slots that are inside the window as a whole.
    """
    terms, values = _session_terms(connection, filters)
    terms += _name_terms(connection, filters, "a")
    window = split_window(filters)
    return Condition(_join(terms), {**values, "first_slot": window.first, "last_slot": window.last})


def filter_sessions(connection: Connection, filters: Filters) -> Condition:
    """Return the condition for rows of `sessions` as s."""
    terms, values = _session_terms(connection, filters)
    window = split_window(filters)
    values |= {"since": filters.since, "until": filters.until, "first_slot": window.first, "last_slot": window.last}
    if filters.since is not None:
        terms.append("s.ended_at >= :since")
    if filters.until is not None:
        terms.append("s.started_at <= :until")
    in_activity = _name_terms(connection, filters, "a")
    in_parts = _name_terms(connection, filters, "p")
    # With one end of the window and no other filter, the first and the last row decide.
    if in_activity or (filters.since is not None and filters.until is not None):
        table = "totals"
        if filters.has_window:
            table = "activity"
            in_activity.append("a.slot BETWEEN :first_slot AND :last_slot")
        found = [f"EXISTS (SELECT 1 FROM {table} a WHERE a.session = s.id AND {_join(in_activity)})"]
        if window.cut:
            in_parts.append("p.at BETWEEN coalesce(:since, 0) AND coalesce(:until, 1 << 62)")
            found.append(f"EXISTS (SELECT 1 FROM parts p WHERE p.session = s.id AND {_join(in_parts)})")
        terms.append(f"({' OR '.join(found)})")
    return Condition(_join(terms), values)


def _session_terms(connection: Connection, filters: Filters) -> tuple[list[str], dict[str, Any]]:
    terms: list[str] = []
    values: dict[str, Any] = {}
    for name, given in (("client", filters.client), ("machine", filters.machine)):
        if given is not None:
            found = connection.execute("SELECT id FROM names WHERE name = ?", (given,)).fetchone()
            terms.append(f"s.{name} = :{name}")
            values[name] = -1 if found is None else found[0]
    if filters.person is not None:
        # `Index` defines the function.
        machines = "SELECT value FROM json_each(machines_of(:person))"
        terms.append(f"s.machine IN (SELECT id FROM names WHERE name IN ({machines}))")
        values["person"] = filters.person
    for count, given in (("calls", filters.tool), ("errors", filters.failed)):
        if given is not None:
            ids = _list_ids(connection, "name = :given", given)
            terms.append(
                f"EXISTS (SELECT 1 FROM tool_totals t WHERE t.session = s.id AND t.tool IN ({ids}) AND t.{count} > 0)"
            )
    terms += list_trait_terms(connection, filters, _name_terms(connection, filters, "a"))
    if filters.excluded:
        terms.append(f"s.id NOT IN ({', '.join(map(str, sorted(filters.excluded)))})")
    return terms, values


def _name_terms(connection: Connection, filters: Filters, table: str) -> list[str]:
    terms = []
    if filters.project is not None:
        terms.append(f"{table}.cwd IN ({_list_ids(connection, *_project_condition(filters.project))})")
    if filters.model is not None:
        condition = "substr(name, 1, length(:given)) = :given"
        terms.append(f"{table}.model IN ({_list_ids(connection, condition, filters.model)})")
    return terms


def _project_condition(project: str) -> tuple[str, str]:
    if project.startswith("/"):
        return "name = :given OR substr(name, 1, length(:given) + 1) = :given || '/'", project.rstrip("/") or "/"
    # A path of Windows has backslashes.
    condition = "name = :given OR substr(replace(name, '\\', '/'), -length(:given) - 1) = '/' || :given"
    return condition, project.rstrip("/\\").replace("\\", "/")


def _list_ids(connection: Connection, condition: str, given: str) -> str:
    found = connection.execute(f"SELECT id FROM names WHERE {condition}", {"given": given})
    return ", ".join(str(row[0]) for row in found)


def _join(terms: list[str]) -> str:
    return " AND ".join(terms) or "true"


@lru_cache(maxsize=4096)
def project_of(cwd: str | None) -> str | None:
    """Return the name of a folder's project: its last folder."""
    return None if cwd is None else cwd.rstrip("/\\").replace("\\", "/").rpartition("/")[2] or cwd


def read_names(connection: Connection, ids: Iterable[int | None]) -> dict[int | None, str | None]:
    """Return the names of these ids; None for an id that stands for no name."""
    found: dict[int | None, str | None] = {None: None, 0: None}
    for each in set(ids) - found.keys():
        row = connection.execute("SELECT name FROM names WHERE id = ?", (each,)).fetchone()
        found[each] = None if row is None else row[0]
    return found


def explain_no_match(connection: Connection, filters: Filters) -> str | None:
    """Return which filter matches no row at all, with what exists instead; None if each filter matches some rows."""
    from hypaware.text import did_you_mean, escape_cell

    statements = {
        "client": "SELECT DISTINCT client FROM sessions",
        "machine": "SELECT DISTINCT machine FROM sessions",
        "model": "SELECT DISTINCT model FROM totals",
        "project": "SELECT DISTINCT cwd FROM totals",
        "tool": "SELECT DISTINCT tool FROM tool_totals WHERE calls > 0",
        "failed": "SELECT DISTINCT tool FROM tool_totals WHERE errors > 0",
    }
    for name, statement in statements.items():
        given = getattr(filters, name)
        if given is None:
            continue
        ids = f"id IN ({statement})"
        if name == "project":
            condition, value = _project_condition(given)
        elif name == "model":
            condition, value = "substr(name, 1, length(:given)) = :given", given
        else:
            condition, value = "name = :given", given
        if connection.execute(
            f"SELECT 1 FROM names WHERE ({condition}) AND {ids} LIMIT 1", {"given": value}
        ).fetchone():
            continue
        known = [escape_cell(row[0]) for row in connection.execute(f"SELECT name FROM names WHERE {ids} ORDER BY name")]
        if name == "project":
            hint = did_you_mean(given, {each: project_of(each) or each for each in known}, or_all=len(known) <= 20)
            return f"no recorded session is in a project {escape_cell(given)}.{hint}"
        hint = did_you_mean(given, known, and_all=True) or " Nothing is recorded yet."
        if name == "tool":
            return f"no recorded session has called the tool {escape_cell(given)}.{hint}"
        if name == "failed":
            return f"in no recorded session a call of the tool {escape_cell(given)} has failed.{hint}"
        return f"no recorded session has the {name} {escape_cell(given)}.{hint}"
    return None


class FilterChoice(NamedTuple):
    value: str
    label: str
    """What people read: the last folder of a project, unless several projects share it."""
    sessions: int


def list_choices(connection: Connection) -> dict[str, list[FilterChoice]]:
    """Return the choices of each filter, the one with the most sessions first, at most 200."""
    found = {}
    for filter_, statement in _CHOICE_STATEMENTS.items():
        rows = connection.execute(f"{statement} ORDER BY 2 DESC LIMIT {_MOST_CHOICES}").fetchall()
        names = read_names(connection, (row[0] for row in rows))
        counts = {
            name: count for id_, count in rows if (name := names[id_]) is not None and len(name) <= _LONGEST_CHOICE
        }
        shared = Counter(project_of(name) for name in counts) if filter_ == "project" else Counter()
        found[filter_] = [
            FilterChoice(name, _choice_label(filter_, name, shared), count) for name, count in counts.items()
        ]
    return found


def _choice_label(filter_: str, name: str, shared: Counter[str | None]) -> str:
    if filter_ != "project":
        return name
    short = project_of(name)
    return name if short is None or shared[short] > 1 else short
