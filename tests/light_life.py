"""A home whose lake is light: append, flush and import as a producer and an engine would, without Spark."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from hypaware.backfill import registry
from hypaware.backfill.admission import Admission
from hypaware.backfill.lots import Lot, Origin
from hypaware.backfill.outcome import Outcome
from hypaware.backfill.request import Request, surveyed
from hypaware.backfill.take_in import take_in
from hypaware.config import Config
from hypaware.home import Home
from hypaware.lake.flush import Flusher, Limits, Report
from hypaware.lake.landing import Landing
from hypaware.lake.secure import Damaged, secure_all, step_back_where_damaged
from hypaware.model import datasets
from hypaware.opening import open_home
from hypaware.spool.writer import SealRule, Spool
from hypaware.state import flushes, sources
from tests.light_lake import LightLake

DATASET = "ai_gateway_messages"
NO_TIMER = SealRule(linger=float("inf"))


def append(home: Home, rows: list[dict[str, Any]], seal: bool = True) -> None:
    spool = Spool(home, NO_TIMER)
    spool.append(DATASET, rows)
    if seal:
        spool.close()


def flush(home: Home, limits: Limits | None = None, *, skip_deferred: bool = False) -> Report:
    """Flush as an engine does: check for damage, recover, then commit."""
    with closing(open_home(home).store) as store, closing(LightLake(home)) as lake:
        with store.reading() as connection:
            known = flushes.high_water(connection)
        found = step_back_where_damaged(home, {name: max(by_source.values()) for name, by_source in known.items()})
        secure_all(home, skip={each.table for each in found if isinstance(each, Damaged)})
        return Flusher(home, store, lake, limits or Limits()).flush(
            datasets.get(DATASET), wait=0, skip_deferred=skip_deferred
        )


class _Unwatched:
    def before_batch(self) -> None:
        pass

    def after_batch(self, batch: Lot) -> None:
        pass


def import_history(home: Home, environment: dict[str, str], provider: str = "claude", **asked: Any) -> Outcome:
    """Import one provider as the job `backfill` does; `config` defaults to the default configuration."""
    admission = Admission.from_config(home, asked.pop("config", Config()))
    entry = registry.providers().get(provider)
    assert entry is not None
    outcome = Outcome(entry)
    flush(home)
    with closing(open_home(home).store) as store, closing(LightLake(home)) as lake:
        request = Request.from_args({"providers": [provider], "environment": environment, **asked})
        with store.reading() as connection:
            marks = admission.drop_stale(sources.known(connection, provider, DATASET))
        found = surveyed(outcome, request, datasets.get(DATASET), marks, request.window)
        origin = Origin(provider, DATASET, environment, open_home(home).gateway_id, admission)
        if found.due:
            take_in(Landing(home, store, lake), outcome, found, origin, _Unwatched())
    return outcome
