"""What was asked for, and what can be said about it before anything is taken: datasets, watermarks, destinations.

The same for a real run and for a dry one; nothing is written here.
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
    def of(cls, args: Mapping[str, Any]) -> Request:
        return cls(
            Path(args["dir"]),
            Answers.of(args),
            tuple(map(Path, args.get("state_dirs") or ())),
            bool(args.get("skip_unreadable")),
        )


def look_through(request: Request, outcome: Outcome) -> tuple[Cache, list[Dataset]]:
    """The cache, and those of its datasets that this installation has; the others are told of."""
    cache = caches.find(request.dir)
    known = datasets.names()
    for name in cache.datasets:
        if name not in known:
            outcome.leave(
                f"dataset {name}", "no such dataset is installed; it stays where it is", _rows_of(cache, name)
            )
    for path in cache.not_followed:
        outcome.leave(str(path), "it is a link, and links are not followed")
    for sink, waiting in watermarks.outboxes(cache, request.state_dirs):
        why = f"{waiting} failed deliveries wait there; their rows lie above the watermark, and are delivered from here"
        outcome.leave(f"outbox of {sink}", why)
    return cache, [datasets.get(name) for name in cache.datasets if name in known]


def _rows_of(cache: Cache, dataset: str) -> int | None:
    """In its tables; None where one cannot be read."""
    try:
        live = [table.opened(each.live_table()) for each in cache.partitions if each.dataset == dataset]
        return sum(file.rows for opened in live for file in opened.files)
    except CacheDamaged:
        return None


def surveyed(
    request: Request, cache: Cache, dataset: Dataset, known: Mapping[str, SourceMark], outcome: Outcome, told: Told
) -> Survey:
    """What there is of the dataset. Raises CacheDamaged for what cannot be read, unless it is to be left out."""
    found = survey(cache, dataset, known, told)
    if found.unreadable and not request.skip_unreadable:
        first, more = found.unreadable[0], len(found.unreadable) - 1
        raise CacheDamaged(
            f"{first.message}{f', and {more} more like it' if more else ''}: rows would be missing. With "
            "--skip-unreadable the rest is taken, and this is told of. Nothing was changed"
        )
    for damage in found.unreadable:
        outcome.leave(f"{dataset.name}, in part", damage.message)
    return found


def claims(
    request: Request,
    cache: Cache,
    found: Sequence[Survey],
    config: Config,
    ours: Addresses,
    outcome: Outcome,
) -> dict[str, list[Claim]]:
    """By dataset: which sinks of ours have what, as the original's watermarks say. All of them are told of."""
    request.answers.check(config)
    known = destinations.recorded(cache.configs)
    through: dict[tuple[str, str, str], dict[str, int]] = {}
    for mark in watermarks.found_in(cache, request.state_dirs):
        files = [each for one in found for each in one.files if mark.is_of(each.partition)]
        sources: list[str | None] = [*sorted({source for each in files for source in each.sources})] or [None]
        of_mark = [WatermarkOutcome(mark.sink, mark.dataset, mark.partition, source, mark.seq) for source in sources]
        outcome.watermarks += of_mark
        if (goes_on := _goes_on(mark, files, cache, known, request.answers, config, ours)).address is not None:
            of_sink = through.setdefault((mark.dataset, str(goes_on.sink), goes_on.address), {})
            name, seq = files[0].partition.name, mark.seq or 0
            of_sink[name] = min(seq, of_sink.get(name, seq))
        for told in of_mark:
            told.to, told.why, told.honoured = goes_on.sink, goes_on.why, goes_on.address is not None
    by_dataset: dict[str, list[Claim]] = {}
    for (dataset, sink, address), of_sink in through.items():
        by_dataset.setdefault(dataset, []).append(Claim(sink, address, of_sink))
    return by_dataset


def _goes_on(
    mark: Watermark,
    files: Sequence[Found],
    cache: Cache,
    known: Mapping[str, str],
    answers: Answers,
    config: Config,
    ours: Addresses,
) -> Continued:
    partitions = [each for each in cache.partitions if mark.is_of(each)]
    if mark.seq is None:
        return Continued(None, why=f"{mark.path} cannot be understood")
    if len(partitions) > 1:
        return Continued(None, why=f"{len(partitions)} partitions have this name, and nothing says which one is meant")
    if not files:
        return Continued(None, why=f"its partition {'has no rows' if partitions else 'is not in the cache'}")
    return destinations.continued(mark.sink, mark.dataset, known, answers, config, ours)
