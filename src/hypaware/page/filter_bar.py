"""The filter bar of the overview, the sessions and the search: the choices, and what is chosen.

A view makes it with `load_filter_bar` and shows it with the macro of `filters.html`:

    bar = await load_filter_bar(context, request, filters)
    context.render(request, "x.html", {"bar": bar, …})

    {% from "filters.html" import filter_bar %}
    {% block filters %}{{ filter_bar(bar) }}{% endblock %}
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from weakref import WeakKeyDictionary

from aiohttp import web

from hypaware.index.filters import CHOICES, FilterChoice, Filters, list_choices, project_of
from hypaware.index.session_traits import parse_others
from hypaware.page.address import ALL_DAYS, FILTERS, PLACES, Linker, read_days
from hypaware.page.context import PageContext
from hypaware.state.machines import MachineNames

_KEPT_SECONDS = 10.0
_PRESETS = ((1, "Today"), (7, "7 days"), (30, "30 days"), (90, "90 days"))
_TEAM_SECONDS = 2.0
_MENUS = (*CHOICES, "person")
_FORM = (*_MENUS, "since", "until")
_NOUNS = {"project": "projects", "client": "clients", "model": "models", "machine": "machines", "person": "people"}
Choices = Mapping[str, list[FilterChoice]]
_kept: WeakKeyDictionary[PageContext, tuple[float, Choices | None]] = WeakKeyDictionary()


class FilterPreset(NamedTuple):
    label: str
    address: str
    is_current: bool


class FilterChip(NamedTuple):
    name: str
    value: str
    without: str
    """The address of the view without this filter."""


class FilterMenu(NamedTuple):
    name: str
    label: str
    """What it says if nothing is chosen."""
    choices: list[FilterChoice]
    chosen: str


@dataclass(frozen=True)
class FilterBar:
    path: str
    presets: list[FilterPreset]
    menus: list[FilterMenu]
    since: str
    until: str
    chips: list[FilterChip]
    kept: list[tuple[str, str]]
    """Other parameters of the address, which the form keeps."""
    clear: str
    """The address of the view without filters."""


async def load_filter_bar(
    context: PageContext, request: web.Request, filters: Filters, *, default_days: int | None = None
) -> FilterBar:
    """Return the bar of a view. `default_days` is the number of days that it shows if the address has none."""
    at, choices = _kept.get(context, (0.0, None))
    # What a team may see can change at any time.
    seconds = _TEAM_SECONDS if context.access.is_team else _KEPT_SECONDS
    if choices is None or time.monotonic() - at > seconds:
        choices = _name_machines(await context.read(lambda index: list_choices(index.connection)), context.machines())
        _kept[context] = (time.monotonic(), choices)
    return make_filter_bar(request.path, request.query, choices, filters, default_days=default_days)


def _name_machines(choices: Choices, names: MachineNames) -> Choices:
    """Return the choices with the names of machines, and the people whose machines they are."""
    people: Counter[str] = Counter()
    for choice in choices["machine"]:
        if (person := names.person_of(choice.value)) is not None:
            people[person] += choice.sessions
    return {
        **choices,
        "machine": [choice._replace(label=names.name_of(choice.value)) for choice in choices["machine"]],
        "person": [FilterChoice(person, person, sessions) for person, sessions in people.most_common()],
    }


def make_filter_bar(
    path: str, query: Mapping[str, str], choices: Choices, filters: Filters, *, default_days: int | None = None
) -> FilterBar:
    link = Linker(path, query)
    given = {name: query[name] for name in FILTERS if query.get(name)}
    return FilterBar(
        path,
        _make_presets(link, given, filters, default_days),
        [
            _make_menu(name, given.get(name, ""), choices.get(name, []))
            for name in _MENUS
            if _is_useful(name, given, choices)
        ],
        given.get("since", ""),
        given.get("until", ""),
        _make_chips(link, given, choices),
        [(name, value) for name, value in query.items() if value and name not in (*_FORM, *PLACES)],
        link(**dict.fromkeys(FILTERS)),
    )


def _make_presets(
    link: Linker, given: Mapping[str, str], filters: Filters, default_days: int | None
) -> list[FilterPreset]:
    days = read_days(given, default_days)
    has_dates = "since" in given or "until" in given
    month = datetime.now(filters.timezone).date().replace(day=1).isoformat()
    found = [
        FilterPreset(label, link(days=None if each == default_days else each), each == days) for each, label in _PRESETS
    ]
    is_month = given.get("since") == month and "until" not in given
    found.append(FilterPreset("This month", link(since=month, until=None), is_month))
    everything = None if default_days is None else ALL_DAYS
    return [*found, FilterPreset("All", link(days=everything), days is None and not has_dates)]


def _is_useful(name: str, given: Mapping[str, str], choices: Choices) -> bool:
    """Return whether there is something to choose. Most homes have one machine and no people."""
    return len(choices.get(name, ())) > 1 or name in given or name == "project"


def _make_menu(name: str, chosen: str, choices: list[FilterChoice]) -> FilterMenu:
    if chosen and all(choice.value != chosen for choice in choices):
        # A name of a project, the beginning of a model's name, or something that is not recorded.
        choices = [FilterChoice(chosen, chosen, -1), *choices]
    return FilterMenu(name, f"All {_NOUNS[name]}", choices, chosen)


def _make_chips(link: Linker, given: Mapping[str, str], choices: Choices) -> list[FilterChip]:
    machines = {choice.value: choice.label for choice in choices["machine"]}
    shown = {"project": project_of(given.get("project")), "machine": machines.get(given.get("machine", ""))}
    if "weekday" in given:
        shown["weekday"] = given["weekday"].capitalize()
    if "hour" in given:
        shown["hour"] = f"{given['hour']:0>2}:00"
    if "others" in given:
        others = parse_others(given["others"])
        names = [(project_of(name) if others.key == "project" else machines.get(name)) or name for name in others.names]
        shown["others"] = f"than {others.key} {', '.join(names)}"
    return [
        FilterChip(name, shown.get(name) or value, link(**{name: None}))
        for name, value in given.items()
        if name != "days"
    ]
