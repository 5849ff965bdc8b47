"""The dry run of a takeover: the exact numbers of rows that it would write, find present, and reject. No Spark.

Rows are read by the same code as in a real run; nothing is written. For watermarks only the destinations are checked:
whether this home has undelivered rows is found by the real run, before it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hypaware.backfill.steps import read_import_state
from hypaware.config import Config
from hypaware.home import Home
from hypaware.home.identity import Identity
from hypaware.iceberg import metadata
from hypaware.lake import prepare, tombstones
from hypaware.lake.build import BuildResult
from hypaware.lake.key_lookup import ExistingKeys
from hypaware.lake.row_keys import hash_row_key, unpack_keys
from hypaware.state import mirror
from hypaware.state.sources import SourceCheckpoint
from hypaware.takeover.cache import PROVIDER
from hypaware.takeover.dataset_import import build_pieces, count_reports, piece_size, start_report
from hypaware.takeover.plan import DatasetPlan, TakeoverRequest, plan_takeover
from hypaware.takeover.report import DatasetTakeoverReport
from hypaware.takeover.rows import TakeoverTerms, number_rows
from hypaware.takeover.table import CacheDamaged

TakeoverProgress = Callable[[str, float, float, dict[str, Any]], None]


def dry_run_takeover(home: Home, config: Config, args: Mapping[str, Any], progress: TakeoverProgress) -> dict[str, Any]:
    request, identity = TakeoverRequest.from_args(args), _identity(home)

    def load_checkpoints(dataset: str) -> Mapping[str, SourceCheckpoint]:
        return read_import_state(home, PROVIDER, dataset).checkpoints

    plan = plan_takeover(request, home, config, identity, load_checkpoints, lambda *_: None, dry_run=True)
    for each in plan.datasets:
        plan.report.datasets.append(_count_dataset(home, identity, request, each, progress))
    return plan.report.as_json()


def _count_dataset(
    home: Home,
    identity: Identity,
    request: TakeoverRequest,
    plan: DatasetPlan,
    progress: TakeoverProgress,
) -> DatasetTakeoverReport:
    dataset, survey = plan.dataset, plan.survey
    counts = start_report(survey)
    terms = TakeoverTerms(identity.gateway_id, metadata.read_retention_start(home, dataset.name))
    present, stones = ExistingKeys(home, dataset, identity.gateway_id), tombstones.read_tombstones(home)
    is_barred = stones.purge_filter.predicate(dataset)
    done = 0
    for piece in build_pieces(number_rows(survey.due, survey.spools), 0, terms):
        built, source_by_seq = BuildResult(), {}
        for seq, row in piece.rows(dataset, built):
            source_by_seq[seq] = dataset.source_of(row)
            if is_barred is not None and is_barred(row):
                built.purged.append(seq)
            elif (key := hash_row_key(dataset, row, identity.gateway_id)) is not None:
                built.seqs.append(seq)
                built.keys += key
        count_reports(counts, built.reports)
        if counts.unreadable and not request.skip_unreadable:
            raise CacheDamaged(counts.unreadable[0])
        if not any(report.error for report in built.reports):
            purged = prepare.find_purged(stones, dataset, identity.gateway_id, [built]).all
            keyed = [(key, seq) for key, seq in unpack_keys(built.keys, built.seqs) if seq not in purged]
            duplicates = present.duplicates(keyed)
            for seq, source in source_by_seq.items():
                counts.tallies[source].purged += seq in purged
                counts.tallies[source].written += seq not in purged and seq not in duplicates
        done += piece_size(piece)
        progress(f"reading {dataset.name}", done, survey.bytes, {"unit": "bytes"})
    return counts


def _identity(home: Home) -> Identity:
    """Return the home's identity, or a placeholder if there is no home yet."""
    if (held := mirror.read_mirror(home.mirror)) is not None:
        return held.identity
    return Identity("dry-run", "dry-run", (), "", str(home.root), 0)
