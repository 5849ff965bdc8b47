"""The dry run of a takeover: the exact numbers of rows that it would write, find present, and reject. No Spark.

Rows are read by the same code as in a real run; nothing is written. For watermarks only the destinations are checked:
whether this home has undelivered rows is found by the real run, before it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hypaware.backfill import marks
from hypaware.backfill.present import Present
from hypaware.config import Config
from hypaware.home import Home
from hypaware.lake import barred, metadata, tombstones
from hypaware.lake.build import Built, row_key
from hypaware.lake.keys import pairs
from hypaware.model.datasets import Dataset
from hypaware.state import mirror
from hypaware.state.identity import Identity
from hypaware.takeover import request as requests
from hypaware.takeover.destinations import Addresses
from hypaware.takeover.judging import Terms
from hypaware.takeover.numbering import number
from hypaware.takeover.outcome import DatasetOutcome, Outcome
from hypaware.takeover.request import Request
from hypaware.takeover.survey import PROVIDER, Survey
from hypaware.takeover.table import CacheDamaged
from hypaware.takeover.take_in import begun, count_reports, pieces_of, size_of

Progress = Callable[[str, float, float, dict[str, Any]], None]


def dry_run(home: Home, config: Config, args: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    request = Request.from_args(args)
    outcome = Outcome(str(request.dir), dry_run=True)
    cache, wanted = requests.look_through(request, outcome)
    identity = _identity(home)
    surveys = []
    for dataset in wanted:
        known = marks.known(home, PROVIDER, dataset.name)
        surveys.append(requests.surveyed(request, cache, dataset, known, outcome, _ignore))
    requests.claims(request, cache, surveys, config, Addresses(home, config, identity), outcome)
    for dataset, survey in zip(wanted, surveys, strict=True):
        outcome.datasets.append(_count_dataset(home, identity, request, dataset, survey, progress))
    return outcome.as_json()


def _count_dataset(
    home: Home, identity: Identity, request: Request, dataset: Dataset, survey: Survey, progress: Progress
) -> DatasetOutcome:
    counts = begun(survey)
    terms = Terms(identity.gateway_id, metadata.retained_from(home, dataset.name))
    present, stones = Present(home, dataset, identity.gateway_id), tombstones.read(home)
    is_barred = stones.purge_filter.predicate(dataset)
    done = 0
    for piece in pieces_of(number(survey.due, survey.spools), 0, terms):
        built, source_by_seq = Built(), {}
        for seq, row in piece.rows(dataset, built):
            source_by_seq[seq] = dataset.source_of(row)
            if is_barred is not None and is_barred(row):
                built.purged.append(seq)
            elif (key := row_key(dataset, row, identity.gateway_id)) is not None:
                built.seqs.append(seq)
                built.keys += key
        count_reports(counts, built.reports)
        if counts.unreadable and not request.skip_unreadable:
            raise CacheDamaged(counts.unreadable[0])
        if not any(report.error for report in built.reports):
            purged = barred.settle(stones, dataset, identity.gateway_id, [built]).all
            keyed = [(key, seq) for key, seq in pairs(built.keys, built.seqs) if seq not in purged]
            duplicates = present.duplicates(keyed)
            for seq, source in source_by_seq.items():
                counts.tallies[source].purged += seq in purged
                counts.tallies[source].written += seq not in purged and seq not in duplicates
        done += size_of(piece)
        progress(f"reading {dataset.name}", done, survey.bytes, {"unit": "bytes"})
    return counts


def _identity(home: Home) -> Identity:
    """Return the home's identity, or a placeholder if there is no home yet."""
    if (held := mirror.read(home.mirror)) is not None:
        return held.identity
    return Identity("dry-run", "dry-run", (), "", str(Path(home.root)), 0)


def _ignore(_number: int, _total: int) -> None:
    return None
