"""Takeover of a cache: every row of an installed dataset, once, and the watermarks. The cache is only read.

Rows in this home's own spool are committed first, so that the key index knows them. Everything that can be refused is
refused before anything is written.
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
    """The callbacks and resources of a takeover."""

    opened: OpenHome
    config: Config
    flush: Callable[[Dataset], None]
    """Commits the rows in the home's own spool."""
    lake: Callable[[Dataset, Survey], Lake]
    on_progress: Callable[[Dataset, int, int], None]
    """(dataset, files read, files in all); may raise Cancelled."""
    check_cancelled: Callable[[], None]


def take_over(context: Means, request: Request) -> Outcome:
    outcome = Outcome(str(request.dir), dry_run=False)
    cache, wanted = requests.look_through(request, outcome)
    surveys = []
    for dataset in wanted:
        with context.opened.store.reading() as connection:
            checkpoints = sources.known(connection, PROVIDER, dataset.name)
        on_progress = partial(context.on_progress, dataset)
        surveys.append(requests.surveyed(request, cache, dataset, checkpoints, outcome, on_progress))
    addresses = Addresses(context.opened.home, context.config, context.opened.identity)
    claims = requests.claims(request, cache, surveys, context.config, addresses, outcome)
    for dataset, survey in zip(wanted, surveys, strict=True):
        outcome.datasets.append(_take(context, request, dataset, survey, claims.get(dataset.name, []), outcome))
    return outcome


def _take(
    context: Means, request: Request, dataset: Dataset, survey: Survey, claims: list[Claim], outcome: Outcome
) -> DatasetOutcome:
    if not (survey.due or survey.spools or claims):
        # Without new rows Spark is not started.
        return begun(survey)
    home, store = context.opened.home, context.opened.store
    context.flush(dataset)
    terms = Terms(context.opened.gateway_id, metadata.retained_from(home, dataset.name))
    landing = Landing(home, store, context.lake(dataset, survey))
    keys = {StreamKey(each.sink, dataset.name, source) for each in claims for source in survey.sources}
    with stream_locks(home, keys), changing(dataset.name, context.check_cancelled):
        dataset_outcome, new_watermarks = TakeIn(landing, dataset, survey, claims, terms, request.skip_unreadable).run()
    for position, seq in new_watermarks.items():
        outcome.set_watermark(position.key.sink, dataset.name, position.key.source, seq)
    for reason in dataset_outcome.unreadable:
        outcome.add_not_taken(f"{dataset.name}, in part", reason)
    return dataset_outcome
