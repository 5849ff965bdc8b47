"""The request for a takeover, and everything that is determined before rows are imported: datasets, watermarks, sinks.

Used by the real run and the dry run; nothing is written here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypaware.config import Config
from hypaware.model import datasets
from hypaware.model.datasets import Dataset
from hypaware.state.source_mark import SourceMark
from hypaware.takeover import cache as caches
from hypaware.takeover import destinations, table, watermarks
from hypaware.takeover.cache import Cache
from hypaware.takeover.delivered import Claim
from hypaware.takeover.destinations import Addresses, Answers, Continued
from hypaware.takeover.outcome import Outcome, WatermarkOutcome
from hypaware.takeover.survey import Found, Survey, Told, survey
from hypaware.takeover.table import CacheDamaged
from hypaware.takeover.watermarks import Watermark


@dataclass(frozen=True)
class Request:
    dir: Path
    answers: Answers
    state_dirs: tuple[Path, ...] = ()
    skip_unreadable: bool = False

    @classmethod
    def from_args(cls, args: Mapping[str, Any]) -> Request:
        return cls(
            Path(args["dir"]),
            Answers.from_args(args),
            tuple(map(Path, args.get("state_dirs") or ())),
            bool(args.get("skip_unreadable")),
        )


def look_through(request: Request, outcome: Outcome) -> tuple[Cache, list[Dataset]]:
    """Return the cache and its datasets that are installed here; report the others."""
    cache = caches.find(request.dir)
    installed = datasets.names()
    for name in cache.datasets:
        if name not in installed:
            outcome.add_not_taken(
                f"dataset {name}", "the dataset is not installed; its rows stay in the cache", _rows_of(cache, name)
            )
    for path in cache.not_followed:
        outcome.add_not_taken(str(path), "links are not followed")
    for sink, failed in watermarks.outboxes(cache, request.state_dirs):
        reason = f"{failed} failed deliveries; their rows are above the watermark and will be delivered from here"
        outcome.add_not_taken(f"outbox of {sink}", reason)
    return cache, [datasets.get(name) for name in cache.datasets if name in installed]


def _rows_of(cache: Cache, dataset: str) -> int | None:
    """Return the number of rows in the dataset's tables; None if one cannot be read."""
    try:
        live = [table.opened(each.live_table()) for each in cache.partitions if each.dataset == dataset]
        return sum(file.rows for opened in live for file in opened.files)
    except CacheDamaged:
        return None


def surveyed(
    request: Request,
    cache: Cache,
    dataset: Dataset,
    checkpoints: Mapping[str, SourceMark],
    outcome: Outcome,
    on_progress: Told,
) -> Survey:
    """Survey the dataset. Raise CacheDamaged if a file cannot be read, unless such files are skipped."""
    found = survey(cache, dataset, checkpoints, on_progress)
    if found.unreadable and not request.skip_unreadable:
        first, more = found.unreadable[0], len(found.unreadable) - 1
        raise CacheDamaged(
            f"{first.message}{f', and {more} more' if more else ''}: rows would be missing. To import the rest and "
            "report the unreadable files, add --skip-unreadable. Nothing was changed"
        )
    for damage in found.unreadable:
        outcome.add_not_taken(f"{dataset.name}, in part", damage.message)
    return found


def claims(
    request: Request,
    cache: Cache,
    surveys: Sequence[Survey],
    config: Config,
    addresses: Addresses,
    outcome: Outcome,
) -> dict[str, list[Claim]]:
    """Return by dataset which rows our sinks have, according to the original's watermarks; report all watermarks."""
    request.answers.check(config)
    recorded = destinations.recorded(cache.configs)
    through: dict[tuple[str, str, str], dict[str, int]] = {}
    for mark in watermarks.found_in(cache, request.state_dirs):
        files = [each for dataset_survey in surveys for each in dataset_survey.files if mark.is_of(each.partition)]
        sources: list[str | None] = [*sorted({source for each in files for source in each.sources})] or [None]
        reports = [WatermarkOutcome(mark.sink, mark.dataset, mark.partition, source, mark.seq) for source in sources]
        outcome.watermarks += reports
        if (match := _match_sink(mark, files, cache, recorded, request.answers, config, addresses)).address is not None:
            sink_through = through.setdefault((mark.dataset, str(match.sink), match.address), {})
            name, seq = files[0].partition.name, mark.seq or 0
            sink_through[name] = min(seq, sink_through.get(name, seq))
        for report in reports:
            report.to, report.why, report.honoured = match.sink, match.reason, match.address is not None
    by_dataset: dict[str, list[Claim]] = {}
    for (dataset, sink, address), sink_through in through.items():
        by_dataset.setdefault(dataset, []).append(Claim(sink, address, sink_through))
    return by_dataset


def _match_sink(
    mark: Watermark,
    files: Sequence[Found],
    cache: Cache,
    recorded: Mapping[str, str],
    answers: Answers,
    config: Config,
    addresses: Addresses,
) -> Continued:
    partitions = [each for each in cache.partitions if mark.is_of(each)]
    if mark.seq is None:
        return Continued(None, reason=f"cannot parse {mark.path}")
    if len(partitions) > 1:
        return Continued(None, reason=f"{len(partitions)} partitions have this name")
    if not files:
        return Continued(None, reason=f"its partition {'has no rows' if partitions else 'is not in the cache'}")
    return destinations.continued(mark.sink, mark.dataset, recorded, answers, config, addresses)
