"""The plan of a takeover: the request, the surveyed datasets, and the watermarks that our sinks continue.

A real run and a dry run start from the same plan. Making it writes nothing. A dry run, without Spark, returns the exact
numbers of rows that the real run would write, find present, and reject: rows are read by the same code. For watermarks
only the destinations are checked: whether this home has undelivered rows is found by the real run, before it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hypaware.backfill.survey import read_import_state
from hypaware.config import Config
from hypaware.export import sink_registry
from hypaware.home import Home
from hypaware.home.identity import Identity
from hypaware.iceberg import metadata
from hypaware.lake import prepare, tombstones
from hypaware.lake.build import BuildResult
from hypaware.lake.key_lookup import ExistingKeys
from hypaware.lake.row_keys import unpack_keys
from hypaware.model import datasets
from hypaware.model.datasets import Dataset, hash_row_key
from hypaware.state import mirror
from hypaware.state.flushes import SourceCheckpoint
from hypaware.takeover import table, watermarks
from hypaware.takeover.cache import PROVIDER, CacheSurvey, OriginalCache, find_cache, survey_dataset
from hypaware.takeover.report import DatasetTakeoverReport, TakeoverReport, WatermarkReport
from hypaware.takeover.rows import TakeoverTerms, build_pieces, number_rows
from hypaware.takeover.table import CacheDamaged
from hypaware.takeover.watermarks import MatchedSink, SinkAnswers, WatermarkClaim

TakeoverProgress = Callable[[str, float, float, dict[str, Any]], None]


@dataclass(frozen=True)
class TakeoverRequest:
    dir: Path
    answers: SinkAnswers
    state_dirs: tuple[Path, ...] = ()
    skip_unreadable: bool = False

    @classmethod
    def from_args(cls, args: Mapping[str, Any]) -> TakeoverRequest:
        return cls(
            Path(args["dir"]),
            SinkAnswers.from_args(args),
            tuple(map(Path, args.get("state_dirs") or ())),
            bool(args.get("skip_unreadable")),
        )


@dataclass(frozen=True)
class DatasetPlan:
    dataset: Dataset
    survey: CacheSurvey
    claims: Sequence[WatermarkClaim]


def plan_takeover(
    request: TakeoverRequest,
    home: Home,
    config: Config,
    identity: Identity,
    load_checkpoints: Callable[[str], Mapping[str, SourceCheckpoint]],
    on_progress: Callable[[Dataset, int, int], None],
    *,
    dry_run: bool,
) -> tuple[TakeoverReport, list[DatasetPlan]]:
    """Survey the cache and match its watermarks. Nothing is written. The report names what will not be imported.

    Raise CacheDamaged if a file cannot be read, unless such files are skipped.
    `load_checkpoints` returns the checkpoints of a dataset; `on_progress` gets (dataset, files read, files in all).
    """
    report = TakeoverReport(str(request.dir), dry_run)
    cache, wanted = _open_cache(request, report)
    surveys: list[CacheSurvey] = []
    for dataset in wanted:
        survey = survey_dataset(cache, dataset, load_checkpoints(dataset.name), partial(on_progress, dataset))
        if survey.unreadable and not request.skip_unreadable:
            first, more = survey.unreadable[0], len(survey.unreadable) - 1
            raise CacheDamaged(
                f"{first.message}{f', and {more} more' if more else ''}: rows would be missing. To import the rest and "
                "report the unreadable files, add --skip-unreadable. Nothing was changed"
            )
        for damage in survey.unreadable:
            report.add_not_taken(f"{dataset.name}, in part", damage.message)
        surveys.append(survey)
    address_of = partial(sink_registry.sink_address, home, config, identity)
    claims = _collect_claims(request, cache, surveys, config, address_of, report)
    surveyed = zip(wanted, surveys, strict=True)
    return report, [DatasetPlan(dataset, survey, claims.get(dataset.name, [])) for dataset, survey in surveyed]


def _open_cache(request: TakeoverRequest, report: TakeoverReport) -> tuple[OriginalCache, list[Dataset]]:
    """Return the cache and its datasets that are installed here; report the others."""
    cache = find_cache(request.dir)
    installed = datasets.list_names()
    for name in cache.datasets:
        if name not in installed:
            report.add_not_taken(
                f"dataset {name}", "the dataset is not installed; its rows stay in the cache", _count_rows(cache, name)
            )
    for path in cache.not_followed:
        report.add_not_taken(str(path), "links are not followed")
    for root in (*cache.state_roots, *request.state_dirs):
        for folder in sorted((root / "sinks").glob("*/outbox")):
            if failed := len(list(folder.glob("*.json"))):
                why = "failed deliveries; their rows are above the watermark and will be delivered from here"
                report.add_not_taken(f"outbox of {folder.parent.name}", f"{failed} {why}")
    return cache, [datasets.get(name) for name in cache.datasets if name in installed]


def _count_rows(cache: OriginalCache, dataset: str) -> int | None:
    """Return the number of rows in the dataset's tables; None if one cannot be read."""
    try:
        live = [table.open_table(each.live_table()) for each in cache.partitions if each.dataset == dataset]
        return sum(file.rows for opened in live for file in opened.files)
    except CacheDamaged:
        return None


def _collect_claims(
    request: TakeoverRequest,
    cache: OriginalCache,
    surveys: Sequence[CacheSurvey],
    config: Config,
    address_of: Callable[[str], str],
    report: TakeoverReport,
) -> dict[str, list[WatermarkClaim]]:
    """Return by dataset which rows our sinks have, according to the original's watermarks; report all watermarks."""
    request.answers.check(config)
    recorded = watermarks.recorded_addresses(cache.configs)
    through: dict[tuple[str, str, str], dict[str, int]] = {}
    for mark in watermarks.find_watermarks(cache, request.state_dirs):
        files = [each for dataset_survey in surveys for each in dataset_survey.files if mark.is_of(each.partition)]
        sources: list[str | None] = [*sorted({source for each in files for source in each.sources})] or [None]
        entries = [WatermarkReport(mark.sink, mark.dataset, mark.partition, source, mark.seq) for source in sources]
        report.watermarks += entries
        partitions = [each for each in cache.partitions if mark.is_of(each)]
        if mark.seq is None:
            match = MatchedSink(None, reason=f"cannot parse {mark.path}")
        elif len(partitions) > 1:
            match = MatchedSink(None, reason=f"{len(partitions)} partitions have this name")
        elif not files:
            state = "has no rows" if partitions else "is not in the cache"
            match = MatchedSink(None, reason=f"its partition {state}")
        else:
            match = watermarks.match_sink(mark.sink, mark.dataset, recorded, request.answers, config, address_of)
        if match.address is not None:
            sink_through = through.setdefault((mark.dataset, str(match.sink), match.address), {})
            name, seq = files[0].partition.name, mark.seq or 0
            sink_through[name] = min(seq, sink_through.get(name, seq))
        for entry in entries:
            entry.to, entry.why, entry.honoured = match.sink, match.reason, match.address is not None
    by_dataset: dict[str, list[WatermarkClaim]] = {}
    for (dataset, sink, address), sink_through in through.items():
        by_dataset.setdefault(dataset, []).append(WatermarkClaim(sink, address, sink_through))
    return by_dataset


def dry_run_takeover(home: Home, config: Config, args: Mapping[str, Any], progress: TakeoverProgress) -> dict[str, Any]:
    request, held = TakeoverRequest.from_args(args), mirror.read_mirror(home.mirror)
    # Before there is a home, a placeholder.
    identity = held.identity if held else Identity("dry-run", "dry-run", (), "", str(home.root), 0)

    def load_checkpoints(dataset: str) -> Mapping[str, SourceCheckpoint]:
        return read_import_state(home, PROVIDER, dataset).checkpoints

    report, plans = plan_takeover(request, home, config, identity, load_checkpoints, lambda *_: None, dry_run=True)
    report.datasets += [_count_dataset(home, identity, request, each, progress) for each in plans]
    return report.as_json()


def _count_dataset(
    home: Home, identity: Identity, request: TakeoverRequest, plan: DatasetPlan, progress: TakeoverProgress
) -> DatasetTakeoverReport:
    dataset, survey = plan.dataset, plan.survey
    counts = DatasetTakeoverReport.start(survey)
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
        counts.add(built.reports)
        if counts.unreadable and not request.skip_unreadable:
            raise CacheDamaged(counts.unreadable[0])
        if not any(report.error for report in built.reports):
            purged = prepare.find_purged(stones, dataset, identity.gateway_id, [built]).all
            keyed = [(key, seq) for key, seq in unpack_keys(built.keys, built.seqs) if seq not in purged]
            duplicates = present.duplicates(keyed)
            for seq, source in source_by_seq.items():
                counts.tallies[source].purged += seq in purged
                counts.tallies[source].written += seq not in purged and seq not in duplicates
        done += piece.size
        progress(f"reading {dataset.name}", done, survey.bytes, {"unit": "bytes"})
    return counts
