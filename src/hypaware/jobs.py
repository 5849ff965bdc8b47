"""The jobs that an engine can run, by name, and the recovery that runs before the first of them."""

from __future__ import annotations

from hypaware.engine.jobs import JobContext

JOBS = {
    "backup": "hypaware.maintain.backup:run_backup",
    "backfill": "hypaware.backfill.import_job:backfill",
    "flush": "hypaware.lake.flush:run_flush",
    "import-cache": "hypaware.takeover.run:import_cache",
    "read": "hypaware.lake.read:run_read",
    "query": "hypaware.query.run:run_query",
    "export": "hypaware.export.delivery:export",
    "reproject": "hypaware.reproject:run_reprojection",
    "replay": "hypaware.export.delivery:replay",
    "maintain": "hypaware.maintain.jobs:run_maintenance",
    "purge": "hypaware.maintain.purge.run:purge_job",
    "verify": "hypaware.verify:run_verify",
}

EMBEDDED_ONLY = {
    "backup": "back up the database and the bucket with their own tools",
    "import-cache": "import into a home of its own and forward its rows",
}
"""Jobs that need an embedded lake, with the reason."""


def on_open(context: JobContext) -> None:
    from hypaware.lake.lake_recovery import recover_lake
    from hypaware.maintain.purge.other_machines import forget_purged

    recover_lake(context)
    forget_purged(context.home, context.progress)
