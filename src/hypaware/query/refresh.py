"""Whether the spool is committed before a query looks: `never`, `always`, or `auto` (the view has grown old)."""

from __future__ import annotations

from hypaware.engine.jobs import JobContext
from hypaware.lake import pending
from hypaware.lake.jobs import flush_datasets
from hypaware.spool import segments


def before_query(context: JobContext, mode: str) -> None:
    """Costs a look at the spool's folders when nothing waits there."""
    if mode == "never":
        return
    if not pending.waits(context.home):
        return
    age = pending.age_of_view(context.home)
    if mode == "auto" and age is not None and age < context.config.flush.interval:
        context.note(f"this view is {age:.0f} s old and newer rows wait in the spool (--refresh always commits them)")
        return
    flush_datasets(context, segments.datasets_with_spool(context.home))
