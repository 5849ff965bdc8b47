"""The plan of an import, from file names, sizes and checkpoints. Opens no transcript."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from hypaware import telemetry
from hypaware.backfill import marks, pinning, registry
from hypaware.backfill.admission import Admission
from hypaware.backfill.outcome import Outcome
from hypaware.backfill.pinning import Survey, path_text
from hypaware.backfill.quiet import nothing_on_stdout
from hypaware.backfill.registry import Registered
from hypaware.backfill.request import Request, attempt, kept_window
from hypaware.config import Config
from hypaware.home import Home
from hypaware.lake import metadata, standing
from hypaware.model.datasets import Dataset


def plan(home: Home, config: Config, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan document; the entry of a provider that fails holds the error."""
    request = Request.from_args(args)
    known = registry.providers()
    chosen = [entry for name in request.providers if (entry := known.get(name))]
    policy = Admission.from_config(home, config, remembers=False)
    planned = [_planned(home, request, entry, policy) for entry in chosen]
    return {"run_id": telemetry.dev_run_id(), "providers": planned}


def _planned(home: Home, request: Request, entry: Registered, policy: Admission) -> dict[str, Any]:
    document: dict[str, Any] = {
        "provider": entry.name,
        "plugin": entry.plugin,
        "datasets": list(entry.provider.datasets),
    }
    outcome = Outcome(entry)
    found: list[Survey] = []
    with nothing_on_stdout():
        for name in entry.provider.datasets:
            attempt(outcome, name, lambda dataset: found.append(_survey(home, request, entry, dataset, policy)))
    if outcome.error:
        return {**document, "plan": None, "error": outcome.error.as_json()}
    return {**document, "plan": _estimate(found)}


def _survey(home: Home, request: Request, entry: Registered, dataset: Dataset, policy: Admission) -> Survey:
    name = dataset.name
    standing.check(home, name, marks.recorded_through(home, name))
    window = kept_window(request.window, metadata.retained_from(home, name))
    checkpoints = policy.drop_stale(marks.known(home, entry.name, name))
    return pinning.survey(entry.provider, request.environment, checkpoints, window, request.now, in_order=False)


def _estimate(found: list[Survey]) -> dict[str, Any]:
    paths = [path_text(due.snapshot.path) for each in found for due in each.due]
    unchanged = sum(each.unchanged for each in found)
    notes = [f"{unchanged} files are unchanged since their last import"] if unchanged else []
    notes += [f"{count} files cannot be read now: {reason}" for each in found for reason, count in each.skipped.items()]
    notes += [_told(event.name, event.facts) for each in found for event in each.events]
    return {
        "estimated_items": len(paths),
        "estimated_bytes": sum(each.bytes for each in found),
        "sources": [os.path.commonpath(paths)] if paths else [],
        "notes": notes,
    }


def _told(name: str, facts: Mapping[str, Any]) -> str:
    return " ".join([name.replace("_", " "), *(f"{key}={value}" for key, value in facts.items())])
