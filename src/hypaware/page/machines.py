"""People and machines: the sessions, tokens and cost of each, and when it was last active.

A machine is known by its host name, and a person is the label of the token that machines enrolled with. A home that
receives nothing has one machine and no people.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from hypaware.index.filters import Filters, filter_sessions, to_text
from hypaware.index.prices import PriceTable
from hypaware.index.sessions import sum_tokens
from hypaware.index.store import Index
from hypaware.index.usage import summarize_usage
from hypaware.page.address import read_filters
from hypaware.page.context import PageContext
from hypaware.page.filter_bar import load_filter_bar
from hypaware.state.machines import MachineNames

_DEFAULT_DAYS = 30


@dataclass
class OwnerFigures:
    """The figures of a machine or a person."""

    name: str
    """The host name of a machine, or the name of a person."""
    machine: str | None = None
    """The id of the machine; None for a person."""
    person: str | None = None
    machines: int = 0
    sessions: int = 0
    tokens: int = 0
    cost_usd: float | None = None
    unpriced_models: list[str] = field(default_factory=list)
    last_seen_at: str | None = None

    @property
    def cost(self) -> dict[str, Any]:
        """The cost as a document, in which models without a price are named."""
        return {"cost_usd": self.cost_usd, "unpriced_models": self.unpriced_models}

    def add(self, other: OwnerFigures) -> None:
        self.machines += 1
        self.sessions += other.sessions
        self.tokens += other.tokens
        if other.cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + other.cost_usd
        self.unpriced_models = sorted({*self.unpriced_models, *other.unpriced_models})
        self.last_seen_at = max(filter(None, (self.last_seen_at, other.last_seen_at)), default=None)


def routes(context: PageContext) -> list[web.RouteDef]:
    async def machines(request: web.Request) -> web.Response:
        filters = read_filters(request.query, default_days=_DEFAULT_DAYS)
        found, bar = await asyncio.gather(
            context.read(read_owners, filters, context.prices(), context.machines()),
            load_filter_bar(context, request, filters, default_days=_DEFAULT_DAYS),
        )
        people = sum_people(found)
        total = OwnerFigures("")
        for each in found:
            total.add(each)
        # Other views have other windows by default.
        window = {} if request.query.get("since") or request.query.get("until") else {"days": _read_days(request)}
        values = {"machines": found, "people": people, "total": total, "bar": bar, "window": window}
        return context.render(request, "machines.html", values)

    return [web.get("/machines", machines)]


def _read_days(request: web.Request) -> str:
    return request.query.get("days") or str(_DEFAULT_DAYS)


def read_owners(index: Index, filters: Filters, prices: PriceTable, names: MachineNames) -> list[OwnerFigures]:
    """Return the machines with sessions that match, the one with the highest cost first."""
    seen = _read_last_seen(index, filters)
    found = []
    for row in summarize_usage(index, filters, prices, by="machine")["rows"]:
        machine = row["key"] or ""
        found.append(
            OwnerFigures(
                names.name_of(machine),
                machine,
                names.person_of(machine),
                1,
                row["sessions"],
                sum_tokens(row["tokens"]),
                row["cost_usd"],
                list(row["unpriced_models"]),
                seen.get(machine),
            )
        )
    return found


def sum_people(machines: Iterable[OwnerFigures]) -> list[OwnerFigures]:
    """Return the people whose machines these are, the one with the highest cost first."""
    found: dict[str, OwnerFigures] = {}
    for each in machines:
        if each.person is not None:
            found.setdefault(each.person, OwnerFigures(each.person, person=each.person)).add(each)
    return sorted(found.values(), key=lambda each: (-(each.cost_usd or 0.0), -each.tokens, each.name))


def _read_last_seen(index: Index, filters: Filters) -> Mapping[str, str | None]:
    condition, values = filter_sessions(index.connection, filters)
    statement = f"""SELECT names.name, max(s.ended_at) FROM sessions s JOIN names ON names.id = s.machine
        WHERE {condition} GROUP BY 1"""
    return {name: to_text(moment) for name, moment in index.connection.execute(statement, values)}
