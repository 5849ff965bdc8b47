"""The jobs that an engine can run, by name, and the recovery that runs before the first of them."""

from __future__ import annotations

from importlib import import_module

from hypaware.engine.jobs import Job, JobContext
from hypaware.errors import HypError
from hypaware.lake import locks

_JOBS = {
    "backup": "hypaware.maintain.backup:run_backup",
    "backfill": "hypaware.backfill.run:backfill",
    "flush": "hypaware.lake.jobs:run_flush",
    "import-cache": "hypaware.takeover.run:import_cache",
    "read": "hypaware.lake.read:run_read",
    "query": "hypaware.query.run:run_query",
    "export": "hypaware.export.jobs:export",
    "reproject": "hypaware.reproject:run_reprojection",
    "replay": "hypaware.export.jobs:replay",
    "maintain": "hypaware.maintain.jobs:run_maintenance",
    "overview": "hypaware.query.overview:run_overview",
    "purge": "hypaware.maintain.purge.run:purge_job",
    "verify": "hypaware.verify:run_verify",
}


def resolve(name: str) -> Job:
    if name not in _JOBS:
        raise HypError(f"the engine has no job {name!r}; it may be older than this command", repair="hyp engine stop")
    module, _, attribute = _JOBS[name].partition(":")
    job: Job = getattr(import_module(module), attribute)
    return locks.track_job()(job)


def on_open(context: JobContext) -> None:
    from hypaware.lake import jobs

    jobs.recover_lake(context)
