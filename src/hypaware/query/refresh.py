"""Commit the spool before a query: `never`, `always`, or `auto` (if the last commit is too old)."""

from __future__ import annotations

from hypaware.engine.jobs import JobContext
from hypaware.lake import pending
from hypaware.lake.jobs import flush_datasets
from hypaware.spool import segments


def before_query(context: JobContext, mode: str) -> None:
    """Flush the spool if the mode requires it. An empty spool costs only a directory listing."""
    if mode == "never":
        return
    if not pending.waits(context.home):
        return
    age = pending.age_of_view(context.home)
    if mode == "auto" and age is not None and age < context.config.flush.interval:
        context.note(
            f"the result is {age:.0f} s old; newer rows are in the spool (use --refresh always to include them)"
        )
        return
    flush_datasets(context, segments.datasets_with_spool(context.home))
