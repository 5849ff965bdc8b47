"""Retention: how long rows are kept, which days are held, and rows that were dropped before a sink received them.

Most of the time nothing is due, which config, state and file statistics show. Only if something is due, the retention
plan is made, by the same code that carries it out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import timedelta
from typing import Any

from hypaware import text
from hypaware.errors import HypError
from hypaware.maintain import retention_plan
from hypaware.model import datasets
from hypaware.status.diagnostics import Diagnostic, PartStatus, StatusInput, info, warning
from hypaware.status.storage import LakeStatus

_RECENT = timedelta(days=7)


def inspect_retention(inputs: StatusInput, lake: LakeStatus) -> PartStatus[dict[str, Any]]:
    settings = inputs.config.retention
    facts = {
        "default_days": settings.default_days,
        "wait_for_sinks": settings.wait_for_sinks,
        "max_hold_days": settings.max_hold_days,
        "datasets": (each := _plan_datasets(inputs) if _needs_plan(inputs, lake) else _list_datasets(inputs, lake)),
    }
    return PartStatus(
        facts, tuple(diagnostic for dataset in each for diagnostic in _retention_diagnostics(inputs, dataset))
    )


def _needs_plan(inputs: StatusInput, lake: LakeStatus) -> bool:
    # Do not plan without readable tables: the tables may belong to another home.
    if inputs.state.condition != "current" or not lake.tables:
        return False
    return bool(inputs.state.holds or inputs.state.drops or any(_is_due(inputs, lake, name) for name in lake.tables))


def _is_due(inputs: StatusInput, lake: LakeStatus, name: str) -> bool:
    with suppress(HypError):
        first = retention_plan.first_day_kept(inputs.config, datasets.get(name), inputs.now)
        return first is not None and any(file.day and file.day < first for file in lake.tables[name].files)
    return False


def _list_datasets(inputs: StatusInput, lake: LakeStatus) -> list[dict[str, Any]]:
    found = []
    for name in sorted(lake.tables):
        with suppress(HypError):
            dataset = datasets.get(name)
            first = retention_plan.first_day_kept(inputs.config, dataset, inputs.now)
            found.append(
                {
                    "dataset": name,
                    "days": retention_plan.days_kept(inputs.config, dataset),
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


def _plan_datasets(inputs: StatusInput) -> list[dict[str, Any]]:
    from hypaware.state.store import StateStore

    with closing(StateStore(inputs.home.state, read_only=True)) as store:
        return retention_plan.retention_status(inputs.home, inputs.config, store, inputs.now)


def _retention_diagnostics(inputs: StatusInput, each: dict[str, Any]) -> Iterator[Diagnostic]:
    for message in each["warnings"]:
        yield warning("retention_warning", str(message).removeprefix("warning: "), "hyp maintain --dry-run")
    if each["rows_held"] and not each["warnings"]:
        sinks = sorted({sink for held in each["held"] for sink in held["sinks"]})
        yield info(
            "retention_holds",
            f"{text.format_count(each['rows_held'], 'row')} of {each['dataset']} "
            f"{'have' if each['rows_held'] != 1 else 'has'} reached the end of retention and "
            f"{'are' if each['rows_held'] != 1 else 'is'} kept until {', '.join(sinks)} "
            f"{'receive' if len(sinks) != 1 else 'receives'} {'them' if each['rows_held'] != 1 else 'it'}",
            f"hyp export {' '.join(sinks)}",
        )
    for drop in each["dropped_undelivered"][-1:]:
        at = text.parse_time(drop["at"])
        report = warning if at and inputs.now - at < _RECENT else info
        yield report(
            "dropped_undelivered",
            f"retention removed {text.format_count(drop['rows'], 'row')} of {each['dataset']} ({drop['source']}, "
            f"{drop['day']}) {text.format_ago(drop['at'], inputs.now)}, before {', '.join(drop['sinks'])} received "
            "them: they had been held for retention.max_hold_days",
            "hyp config set retention.max_hold_days 365",
        )
