"""`hyp maintain --dry-run`: run the steps in the process of the command, without Spark and without changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from hypaware.config import Config
from hypaware.home import Home
from hypaware.maintain import rebuild
from hypaware.maintain.jobs import STEPS, run_steps
from hypaware.maintain.report import Report
from hypaware.maintain.work import Work
from hypaware.model.datasets import Dataset

if TYPE_CHECKING:
    from hypaware.state.store import Store


def would_do(
    home: Home,
    config: Config,
    store: Store,
    wanted: Sequence[Dataset],
    args: dict[str, Any],
    now: datetime,
    note: Callable[[str], None],
) -> dict[str, Any]:
    """Return the report for datasets that have a table; `args` as in the job `maintain`."""
    steps = (rebuild.run,) if args.get("rebuild") else STEPS[args.get("only")]
    reports = []
    for dataset in wanted:
        report = Report(dataset.name)
        context = Work(
            home, config, store, _NoLake(), dataset, now, force=bool(args.get("force")), dry_run=True, note=note
        )
        run_steps(context, steps, report)
        reports.append(report.as_json())
    return {"datasets": reports}


class _NoLake:
    def table(self, _dataset: Dataset) -> NoReturn:
        raise AssertionError("a dry run changes no table")

    def run(self, _tasks: object) -> NoReturn:
        raise AssertionError("a dry run runs no tasks")
