"""A dry run: what a take-over would write, find there already and refuse, exactly, without a trace. No Spark.

Rows are read by the same pieces as in a real run; nothing is written anywhere. Whether a watermark can be taken over is
only told as far as destinations go: what this home has to deliver first is found out by the real run, before it writes.
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
    request = Request.of(args)
    outcome = Outcome(str(request.dir), dry_run=True)
    cache, wanted = requests.look_through(request, outcome)
    identity = _identity(home)
    looked_at = []
    for dataset in wanted:
        known = marks.known(home, PROVIDER, dataset.name)
        looked_at.append(requests.surveyed(request, cache, dataset, known, outcome, _unheard))
    requests.claims(request, cache, looked_at, config, Addresses(home, config, identity), outcome)
    for dataset, found in zip(wanted, looked_at, strict=True):
        outcome.datasets.append(_would_take(home, identity, request, dataset, found, progress))
    return outcome.as_json()


def _would_take(
    home: Home, identity: Identity, request: Request, dataset: Dataset, found: Survey, progress: Progress
) -> DatasetOutcome:
    taken = begun(found)
    terms = Terms(identity.gateway_id, metadata.retained_from(home, dataset.name))
    present, stones = Present(home, dataset, identity.gateway_id), tombstones.read(home)
    bar = stones.closed.bar(dataset)
    done = 0
    for piece in pieces_of(number(found.due, found.spools), 0, terms):
        built, of_source = Built(), {}
        for seq, row in piece.rows(dataset, built):
            of_source[seq] = dataset.source_of(row)
            if bar is not None and bar(row):
                built.purged.append(seq)
            elif (key := row_key(dataset, row, identity.gateway_id)) is not None:
                built.seqs.append(seq)
                built.keys += key
        count_reports(taken, built.notes)
        if taken.left and not request.skip_unreadable:
            raise CacheDamaged(taken.left[0])
        if not any(report.error for report in built.notes):
            purged = barred.settle(stones, dataset, identity.gateway_id, [built]).all
            keyed = [(key, seq) for key, seq in pairs(built.keys, built.seqs) if seq not in purged]
            losers = present.duplicates(keyed)
            for seq, source in of_source.items():
                taken.tallies[source].purged += seq in purged
                taken.tallies[source].written += seq not in purged and seq not in losers
        done += size_of(piece)
        progress(f"reading {dataset.name}", done, found.bytes, {"unit": "bytes"})
    return taken


def _identity(home: Home) -> Identity:
    """Of the home as it is; nobody's where there is none yet."""
    if (held := mirror.read(home.mirror)) is not None:
        return held.identity
    return Identity("dry-run", "dry-run", (), "", str(Path(home.root)), 0)


def _unheard(_number: int, _total: int) -> None:
    return None
