"""A home with a light lake: append, flush and import as a producer and an engine would, without Spark."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from hypaware.backfill import providers
from hypaware.backfill.import_job import commit_batches, survey_for_report
from hypaware.backfill.report import ImportReport
from hypaware.backfill.request import ImportArguments, ImportPolicy
from hypaware.backfill.source_rows import ImportContext
from hypaware.backfill.survey import read_import_state
from hypaware.config import Config, FlushConfig
from hypaware.errors import LakeError
from hypaware.home import Home
from hypaware.iceberg.fsync import fsync_all, roll_back_damaged
from hypaware.lake.commit import open_table
from hypaware.lake.flush import Flusher, FlushReport
from hypaware.model import datasets
from hypaware.spool.writer import SealRule, Spool
from hypaware.state import flushes
from hypaware.state.home_opener import open_home
from hypaware.state.location import find_machine
from tests.support.light_lake import LightLake

DATASET = "ai_gateway_messages"
NO_TIMER = SealRule(linger=float("inf"))


def append(home: Home, rows: list[dict[str, Any]], seal: bool = True) -> None:
    spool = Spool(home, NO_TIMER)
    spool.append(DATASET, rows)
    if seal:
        spool.close()


def flush(
    home: Home, limits: FlushConfig | None = None, *, skip_deferred: bool = False, dataset: str = DATASET
) -> FlushReport:
    """Flush as an engine does: check for damage, recover, then commit."""
    with closing(open_home(home).store) as store, closing(LightLake(home)) as lake:
        with store.reading() as connection:
            known = flushes.load_high_water(connection)
        found = roll_back_damaged(home, {name: max(by_source.values()) for name, by_source in known.items()})
        fsync_all(home, skip={table for table, reason in found.items() if isinstance(reason, LakeError)})
        return Flusher(home, store, lake, limits or FlushConfig()).flush(
            datasets.get(dataset), wait=0, skip_deferred=skip_deferred
        )


def import_history(home: Home, environment: dict[str, str], provider: str = "claude", **options: Any) -> ImportReport:
    """Import one provider as the job `backfill` does; `config` defaults to the default configuration."""
    policy = ImportPolicy.from_config(home, options.pop("config", Config()))
    entry = providers.load_providers().get(provider)
    assert entry is not None
    report = ImportReport(entry)
    flush(home)
    opened = open_home(home)
    with closing(opened.store) as store, closing(LightLake(home)) as lake:
        request = ImportArguments([provider], environment=environment, **options)
        dataset, state = datasets.get(DATASET), read_import_state(home, provider, DATASET)
        found = survey_for_report(report, home, request, dataset, state, policy)
        context = ImportContext(provider, DATASET, environment, opened.gateway_of_rows, policy, find_machine(home))
        if found.due:
            with open_table(home, store, lake, dataset) as target:
                commit_batches(target, report, found, context)
    return report
