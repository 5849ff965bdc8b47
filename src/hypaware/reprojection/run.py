"""The job `reproject`: append the rows that the lake lacks to the spool, and flush them.

args: `since`, `until` (canonical UTC text, or None). Result: the document of `Outcome`.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

from hypaware.backfill.pinned import Window
from hypaware.engine.jobs import JobContext
from hypaware.lake import jobs as lake_jobs
from hypaware.lake import pending
from hypaware.model.exchanges import AI_GATEWAY_EXCHANGES
from hypaware.model.messages import AI_GATEWAY_MESSAGES
from hypaware.opening import open_home
from hypaware.reprojection import stored
from hypaware.reprojection.adding import add, before_flush
from hypaware.reprojection.outcome import Outcome

_BOTH = (AI_GATEWAY_EXCHANGES.name, AI_GATEWAY_MESSAGES.name)


def reproject(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    if due := [name for name in _BOTH if pending.waits(context.home, [name])]:
        lake_jobs.flush_datasets(context, due)
    outcome, total = Outcome(dry_run=False), stored.count(context.home)

    def progress(number: int) -> None:
        context.check_cancelled()
        if number % 100 == 0:
            context.progress("reading raw exchanges", number, total, unit="exchanges", rows=outcome.rows_projected)

    opened = open_home(context.home)
    with closing(opened.store):
        added = add(opened, context.config, Window(args.get("since"), args.get("until")), outcome, progress)
    if added:
        before_flush()
        outcome.add_flush(added, lake_jobs.flush_datasets(context, [AI_GATEWAY_MESSAGES.name]))
    return outcome.as_json()
