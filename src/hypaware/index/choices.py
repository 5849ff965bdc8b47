"""What the filters can choose from: the recorded projects, clients, models and machines, with their sessions."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from hypaware.index.filters import project_of, read_names

if TYPE_CHECKING:
    from hypaware.index.store import Index

CHOICES = ("project", "client", "model", "machine")
_MOST = 200
_LONGEST = 500
"""Longer names, which only hostile rows have, cannot be chosen."""
_STATEMENTS = {
    "project": "SELECT cwd, count(DISTINCT session) FROM totals GROUP BY 1",
    "model": "SELECT model, count(DISTINCT session) FROM totals GROUP BY 1",
    "client": "SELECT client, count(*) FROM sessions GROUP BY 1",
    "machine": "SELECT machine, count(*) FROM sessions GROUP BY 1",
}


class FilterChoice(NamedTuple):
    value: str
    label: str
    """What people read: the last folder of a project, unless several projects share it."""
    sessions: int


def list_choices(index: Index) -> dict[str, list[FilterChoice]]:
    """Return the choices of each filter, the one with the most sessions first, at most 200."""
    found = {}
    for filter_, statement in _STATEMENTS.items():
        rows = index.connection.execute(f"{statement} ORDER BY 2 DESC LIMIT {_MOST}").fetchall()
        names = read_names(index.connection, (row[0] for row in rows))
        counts = {name: count for id_, count in rows if (name := names[id_]) is not None and len(name) <= _LONGEST}
        shared = Counter(project_of(name) for name in counts) if filter_ == "project" else Counter()
        found[filter_] = [FilterChoice(name, _label(filter_, name, shared), count) for name, count in counts.items()]
    return found


def _label(filter_: str, name: str, shared: Counter[str | None]) -> str:
    if filter_ != "project":
        return name
    short = project_of(name)
    return name if short is None or shared[short] > 1 else short
