"""What is kept for how long, what retention waits with, and what it dropped although a sink had not had it.

Most of the time nothing is due, and that is told from config, state and files. Only where something is, the plan is
made, by the same code that carries it out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import timedelta
from typing import Any

from hypaware.errors import HypError
from hypaware.maintain import kept
from hypaware.model import datasets
from hypaware.status import words
from hypaware.status.diagnostic import Diagnostic, Found, info, warning
from hypaware.status.lake import Lake
from hypaware.status.view import View

_NEWS = timedelta(days=7)


def look(view: View, lake: Lake) -> Found[dict[str, Any]]:
    settings = view.config.retention
    facts = {
        "default_days": settings.default_days,
        "wait_for_sinks": settings.wait_for_sinks,
        "max_hold_days": settings.max_hold_days,
        "datasets": (each := _planned(view) if _is_worth_a_plan(view, lake) else _unplanned(view, lake)),
    }
    return Found(facts, tuple(said for dataset in each for said in _diagnostics(view, dataset)))


def _is_worth_a_plan(view: View, lake: Lake) -> bool:
    # Without tables that could be read there is nothing to plan: they may be another home's.
    if view.memory.state != "current" or not lake.tables:
        return False
    return bool(view.memory.holds or view.memory.drops or any(_due(view, lake, name) for name in lake.tables))


def _due(view: View, lake: Lake, name: str) -> bool:
    with suppress(HypError):
        first = kept.first_day_kept(view.config, datasets.get(name), view.now)
        return first is not None and any(file.day and file.day < first for file in lake.tables[name].files)
    return False


def _unplanned(view: View, lake: Lake) -> list[dict[str, Any]]:
    found = []
    for name in sorted(lake.tables):
        with suppress(HypError):
            dataset = datasets.get(name)
            first = kept.first_day_kept(view.config, dataset, view.now)
            found.append(
                {
                    "dataset": name,
                    "days": kept.days_kept(view.config, dataset),
                    "first_day_kept": first.isoformat() if first else None,
                    "rows_due": 0,
                    "rows_held": 0,
                    "rows_without_time": sum(file.rows for file in lake.tables[name].files if first and not file.day),
                    "held": [],
                    "warnings": [],
                    "dropped_undelivered": [],
                }
            )
    return found


def _planned(view: View) -> list[dict[str, Any]]:
    from hypaware.maintain.retention import retention_standing
    from hypaware.status.glance import Glance

    with closing(Glance(view.home.state)) as store:
        return retention_standing(view.home, view.config, store, view.now)


def _diagnostics(view: View, each: dict[str, Any]) -> Iterator[Diagnostic]:
    for told in each["warnings"]:
        yield warning("retention_warning", str(told).removeprefix("warning: "), "hyp maintain --dry-run")
    if each["rows_held"] and not each["warnings"]:
        sinks = sorted({sink for held in each["held"] for sink in held["sinks"]})
        yield info(
            "retention_holds",
            f"{words.count(each['rows_held'], 'row')} of {each['dataset']} would go by now, and "
            f"{'wait' if each['rows_held'] != 1 else 'waits'} for {', '.join(sinks)}",
            f"hyp export {' '.join(sinks)}",
        )
    for drop in each["dropped_undelivered"][-1:]:
        at = words.moment(drop["at"])
        say = warning if at and view.now - at < _NEWS else info
        yield say(
            "dropped_undelivered",
            f"{words.count(drop['rows'], 'row')} of {each['dataset']} ({drop['source']}, {drop['day']}) went "
            f"{words.ago(drop['at'], view.now)} although {', '.join(drop['sinks'])} had not had them: they had waited "
            "for retention.max_hold_days",
            "hyp config set retention.max_hold_days 365",
        )
