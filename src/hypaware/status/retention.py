"""Retention: how long rows are kept, which days are held, and what was dropped before a sink received it.

Most of the time nothing is due, which config, state and file statistics show. Only if something is due, the retention
plan is made, by the same code that carries it out.
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

_RECENT = timedelta(days=7)


def look(view: View, lake: Lake) -> Found[dict[str, Any]]:
    settings = view.config.retention
    facts = {
        "default_days": settings.default_days,
        "wait_for_sinks": settings.wait_for_sinks,
        "max_hold_days": settings.max_hold_days,
        "datasets": (each := _planned(view) if _needs_plan(view, lake) else _unplanned(view, lake)),
    }
    return Found(facts, tuple(diagnostic for dataset in each for diagnostic in _diagnostics(view, dataset)))


def _needs_plan(view: View, lake: Lake) -> bool:
    # Do not plan without readable tables: the tables may belong to another home.
    if view.state.condition != "current" or not lake.tables:
        return False
    return bool(view.state.holds or view.state.drops or any(_is_due(view, lake, name) for name in lake.tables))


def _is_due(view: View, lake: Lake, name: str) -> bool:
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
    for message in each["warnings"]:
        yield warning("retention_warning", str(message).removeprefix("warning: "), "hyp maintain --dry-run")
    if each["rows_held"] and not each["warnings"]:
        sinks = sorted({sink for held in each["held"] for sink in held["sinks"]})
        yield info(
            "retention_holds",
            f"{words.count(each['rows_held'], 'row')} of {each['dataset']} "
            f"{'have' if each['rows_held'] != 1 else 'has'} reached the end of retention and "
            f"{'are' if each['rows_held'] != 1 else 'is'} kept until {', '.join(sinks)} "
            f"{'receive' if len(sinks) != 1 else 'receives'} {'them' if each['rows_held'] != 1 else 'it'}",
            f"hyp export {' '.join(sinks)}",
        )
    for drop in each["dropped_undelivered"][-1:]:
        at = words.moment(drop["at"])
        report = warning if at and view.now - at < _RECENT else info
        yield report(
            "dropped_undelivered",
            f"retention removed {words.count(drop['rows'], 'row')} of {each['dataset']} ({drop['source']}, "
            f"{drop['day']}) {words.ago(drop['at'], view.now)}, before {', '.join(drop['sinks'])} received them: they "
            "had been held for retention.max_hold_days",
            "hyp config set retention.max_hold_days 365",
        )
