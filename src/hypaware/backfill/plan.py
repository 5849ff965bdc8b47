"""The plan of an import, from file names, sizes and checkpoints. Opens no transcript."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from hypaware import telemetry
from hypaware.backfill.privacy_filter import ImportPolicy
from hypaware.backfill.providers import RegisteredProvider, load_providers
from hypaware.backfill.report import ImportReport, isolate_failure
from hypaware.backfill.request import ImportArguments
from hypaware.backfill.survey import SourceSurvey, encode_path, read_import_state, survey_dataset
from hypaware.config import Config
from hypaware.home import Home
from hypaware.model.datasets import Dataset


def make_plan(home: Home, config: Config, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan document; the entry of a provider that fails holds the error."""
    request = ImportArguments.from_args(args)
    known = load_providers()
    chosen = [entry for name in request.providers if (entry := known.get(name))]
    policy = ImportPolicy.from_config(home, config, remembers=False)
    planned = [_plan_provider(home, request, entry, policy) for entry in chosen]
    return {"run_id": telemetry.dev_run_id(), "providers": planned}


def _plan_provider(
    home: Home, request: ImportArguments, entry: RegisteredProvider, policy: ImportPolicy
) -> dict[str, Any]:
    report = ImportReport(entry)
    found: list[SourceSurvey] = []

    def survey(dataset: Dataset) -> None:
        state = read_import_state(home, entry.name, dataset.name)
        found.append(survey_dataset(home, request, entry.provider, dataset, state, policy, in_order=False))

    with redirect_stdout():
        for name in entry.provider.datasets:
            isolate_failure(report, name, survey)
    document = {"provider": entry.name, "plugin": entry.plugin, "datasets": list(entry.provider.datasets)}
    if report.error:
        return {**document, "plan": None, "error": report.error.as_json()}
    return {**document, "plan": _estimate(found)}


def _estimate(found: list[SourceSurvey]) -> dict[str, Any]:
    paths = [encode_path(due.snapshot.path) for each in found for due in each.due]
    unchanged = sum(each.unchanged for each in found)
    notes = [f"{unchanged} files are unchanged since their last import"] if unchanged else []
    notes += [f"{count} files cannot be read now: {reason}" for each in found for reason, count in each.skipped.items()]
    notes += [
        " ".join([event.name.replace("_", " "), *(f"{key}={value}" for key, value in event.facts.items())])
        for each in found
        for event in each.events
    ]
    return {
        "estimated_items": len(paths),
        "estimated_bytes": sum(each.bytes for each in found),
        "sources": [os.path.commonpath(paths)] if paths else [],
        "notes": notes,
    }


@contextlib.contextmanager
def redirect_stdout() -> Iterator[None]:
    """Redirect stdout to stderr, even for writes that bypass Python: plugins must not print into a command's output."""
    sys.stdout.flush()
    saved = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
