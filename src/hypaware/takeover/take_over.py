"""Everything of a cache that this home has a place for, each row once, and its watermarks. The cache is only read.

What waits in this home's own spool is committed first, so that the lake's keys say what is there. Everything that can
be refused is refused before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from hypaware.config import Config
from hypaware.export.locks import stream_locks
from hypaware.lake import metadata
from hypaware.lake.committer import Lake
from hypaware.lake.landing import Landing
from hypaware.lake.turns import changing
from hypaware.model.datasets import Dataset
from hypaware.opening import OpenHome
from hypaware.state import sources
from hypaware.state.stream_key import StreamKey
from hypaware.takeover import request as requests
from hypaware.takeover.delivered import Claim
from hypaware.takeover.destinations import Addresses
from hypaware.takeover.judging import Terms
from hypaware.takeover.outcome import DatasetOutcome, Outcome
from hypaware.takeover.request import Request
from hypaware.takeover.survey import PROVIDER, Survey
from hypaware.takeover.take_in import TakeIn, begun


@dataclass(frozen=True)
class Means:
    """What a take-over needs of whoever runs it."""

    opened: OpenHome
    config: Config
    flush: Callable[[Dataset], None]
    """Commits what waits in the home's own spool."""
    lake: Callable[[Dataset, Survey], Lake]
    told: Callable[[Dataset, int, int], None]
    """(dataset, files looked at, files in all); may raise Cancelled."""
    check_cancelled: Callable[[], None]


def take_over(means: Means, request: Request) -> Outcome:
    outcome = Outcome(str(request.dir), dry_run=False)
    cache, wanted = requests.look_through(request, outcome)
    looked_at = []
    for dataset in wanted:
        with means.opened.store.reading() as connection:
            known = sources.known(connection, PROVIDER, dataset.name)
        told = partial(means.told, dataset)
        looked_at.append(requests.surveyed(request, cache, dataset, known, outcome, told))
    ours = Addresses(means.opened.home, means.config, means.opened.identity)
    claims = requests.claims(request, cache, looked_at, means.config, ours, outcome)
    for dataset, found in zip(wanted, looked_at, strict=True):
        outcome.datasets.append(_take(means, request, dataset, found, claims.get(dataset.name, []), outcome))
    return outcome


def _take(
    means: Means, request: Request, dataset: Dataset, found: Survey, claims: list[Claim], outcome: Outcome
) -> DatasetOutcome:
    if not (found.due or found.spools or claims):
        # Nothing new costs nothing: Spark is not asked for.
        return begun(found)
    home, store = means.opened.home, means.opened.store
    means.flush(dataset)
    terms = Terms(means.opened.gateway_id, metadata.retained_from(home, dataset.name))
    landing = Landing(home, store, means.lake(dataset, found))
    keys = {StreamKey(each.sink, dataset.name, source) for each in claims for source in found.sources}
    with stream_locks(home, keys), changing(dataset.name, means.check_cancelled):
        taken, raised = TakeIn(landing, dataset, found, claims, terms, request.skip_unreadable).run()
    for settled, seq in raised.items():
        outcome.tell(settled.key.sink, dataset.name, settled.key.source, seq)
    for why in taken.left:
        outcome.leave(f"{dataset.name}, in part", why)
    return taken
