"""The jobs that an engine can run, by name, and the recovery that runs before the first of them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hypaware.engine.jobs import Job, JobContext
from hypaware.errors import HypError
from hypaware.lake import turns

_JOBS = {
    "backup": "hypaware.maintain.backup:backup",
    "backfill": "hypaware.backfill.run:backfill",
    "flush": "hypaware.lake.jobs:flush",
    "import-cache": "hypaware.takeover.run:import_cache",
    "read": "hypaware.lake.jobs:read",
    "query": "hypaware.query.run:run_query",
    "export": "hypaware.export.jobs:export",
    "reproject": "hypaware.reprojection.run:reproject",
    "replay": "hypaware.export.jobs:replay",
    "maintain": "hypaware.maintain.jobs:maintain",
    "overview": "hypaware.query.overview:run_overview",
    "purge": "hypaware.maintain.purge.jobs:purge",
    "verify": "hypaware.verify.run:verify",
}


def resolve(name: str) -> Job:
    if name not in _JOBS:
        raise HypError(f"the engine has no job {name!r}; it may be older than this command", repair="hyp engine stop")
    module, _, attribute = _JOBS[name].partition(":")
    job: Job = getattr(import_module(module), attribute)

    def counted(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
        with turns.running():
            return job(context, args)

    return counted


def on_open(context: JobContext) -> None:
    from hypaware.lake import jobs

    jobs.recover(context)
