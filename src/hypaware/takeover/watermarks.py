"""The watermarks of the original, the sinks of ours that continue them, and their value in our sequences.

    <state>/plugins/<plugin>/sink-instances/<sink>/watermarks/<dataset>/<partition>.json
    {"v": 1, "continuation": {"v": 1, "seq": "1481"}, "exportedRowCount": …, "updatedAt": …}

`<partition>` is the partition's path below its dataset, with every character except letters, digits and `._=,-`
replaced by `_`. Older versions kept one directory for all sinks of a plugin; the last name of its path is used as the
sink then. All rows up to a watermark were delivered, and so were rows without a sequence.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hypaware.config import Config
from hypaware.errors import ConfigError, HypError, UsageError
from hypaware.export.sinks.blob import parse_location
from hypaware.export.sinks.forward import normalise_url
from hypaware.home import Home
from hypaware.lake import read
from hypaware.lake.table import OpenTable
from hypaware.model.datasets import Dataset, hash_key
from hypaware.state import flushes, streams
from hypaware.state.store import Connection
from hypaware.state.streams import HISTORY_LOST, StreamKey
from hypaware.takeover.cache import CachePartition, CacheSurvey, OriginalCache, SurveyedFile
from hypaware.takeover.rows import RowNumbering
from hypaware.text import did_you_mean

UNNAMED = "unnamed"
_WATERMARKS = "watermarks"
_SUBFOLDERS = ("plugins", "sinks", _WATERMARKS)
_PARENTS_OF_SINK = ("sink-instances", "sinks")
_UNSAFE = re.compile(r"[^A-Za-z0-9._=,-]")
_MAX_DEPTH = 6


@dataclass(frozen=True)
class CacheWatermark:
    """Rows of the partition with a sequence up to `seq`, and rows without one, were delivered."""

    sink: str
    dataset: str
    partition: str
    path: Path
    seq: int | None
    """None if the file cannot be parsed."""

    def is_of(self, partition: CachePartition) -> bool:
        return self.dataset == _sanitise(partition.dataset) and self.partition == partition_key(partition)


def partition_key(partition: CachePartition) -> str:
    return "/".join(map(_sanitise, partition.segments)) or "_partition"


def find_watermarks(cache: OriginalCache, extra_roots: Iterable[Path]) -> list[CacheWatermark]:
    """Return the watermarks of the cache's installation and those in directories that the user named."""
    by_path: dict[Path, CacheWatermark] = {}
    for root in (*cache.state_roots, *extra_roots):
        for folder in [found for name in _SUBFOLDERS for found in _watermark_folders(root / name, _MAX_DEPTH)]:
            sink = _sink_of(folder.relative_to(root).parts[:-1])
            for path in sorted(folder.rglob("*.json")):
                dataset, *segments = path.relative_to(folder).with_suffix("").parts
                if segments and path.is_file():
                    mark = CacheWatermark(sink, dataset, "/".join(segments), path, _read_sequence(path))
                    by_path.setdefault(path.resolve(), mark)
    return sorted(by_path.values(), key=lambda mark: (mark.sink, mark.dataset, mark.partition))


def _watermark_folders(folder: Path, depth: int) -> Iterator[Path]:
    """Yield directories named `watermarks`, without following links."""
    if folder.is_symlink() or not folder.is_dir():
        return
    if folder.name == _WATERMARKS:
        yield folder
    elif depth:
        for entry in sorted(os.scandir(folder), key=lambda found: found.name):
            if entry.is_dir(follow_symlinks=False):
                yield from _watermark_folders(folder / entry.name, depth - 1)


def _sink_of(parts: tuple[str, ...]) -> str:
    for parent in _PARENTS_OF_SINK:
        if parent in parts[:-1]:
            return parts[parts.index(parent) + 1]
    return parts[-1] if parts else UNNAMED


def _read_sequence(path: Path) -> int | None:
    try:
        document = json.loads(path.read_bytes())["continuation"]
        seq = document["seq"]
        if document["v"] != 1 or isinstance(seq, bool) or not re.fullmatch(r"\d{1,19}", str(seq)):
            return None
        return int(seq)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _sanitise(segment: str) -> str:
    return _UNSAFE.sub("_", segment)


@dataclass(frozen=True)
class SinkAnswers:
    """The user's options about sinks."""

    renamed: Mapping[str, str] = field(default_factory=dict)
    """Original name → our name."""
    same: frozenset[str] = frozenset()
    """Our sinks that deliver to the original's destination."""
    other: frozenset[str] = frozenset()
    """Our sinks that deliver elsewhere: they get all rows."""

    @classmethod
    def from_args(cls, args: Mapping[str, Any]) -> SinkAnswers:
        return cls(dict(args.get("sinks") or {}), frozenset(args.get("same") or ()), frozenset(args.get("other") or ()))

    def check(self, config: Config) -> None:
        if both := self.same & self.other:
            raise UsageError(f"--same-destination and --other-destination both name the sink {min(both)}")
        for name in (*self.renamed.values(), *self.same, *self.other):
            if name not in config.sinks:
                known = did_you_mean(name, list(config.sinks)) if config.sinks else " The config has no sinks."
                raise UsageError(f"unknown sink {name!r}.{known}", kind="unknown_sink", repair="hyp config show")


@dataclass(frozen=True)
class MatchedSink:
    """The match of an original sink: `sink` continues at `address`, or does not, and the reason."""

    sink: str | None
    address: str | None = None
    reason: str = ""


def match_sink(
    original: str,
    dataset: str,
    known: Mapping[str, str],
    answers: SinkAnswers,
    config: Config,
    address_of: Callable[[str], str],
) -> MatchedSink:
    """Match a sink of the original with one of ours. Raise HypError if only the user can tell.

    A sink continues another if both have the same name, or the name that the user gives, and the same destination. The
    destination of an original sink is known from its config, if that is found with the cache; two spellings of one
    address are the same destination. If it is unknown, a guess could send every row twice or lose rows.
    """
    name = answers.renamed.get(original, original)
    if name not in config.sinks:
        return MatchedSink(
            None, reason=f"the config has no sink {name}; to continue it under another name, add --sink {original}=NAME"
        )
    if dataset not in config.sinks[name].datasets:
        return MatchedSink(name, reason=f"the sink {name} does not deliver {dataset}")
    if name in answers.other:
        return MatchedSink(name, reason="--other-destination: it gets all rows")
    address = address_of(name)
    if name in answers.same:
        return MatchedSink(name, address, "--same-destination")
    if original in known and known[original] == address:
        return MatchedSink(name, address, f"both deliver to {address}")
    destination = f"to {known[original]}" if original in known else "to an unknown destination"
    raise HypError(
        f"the original's sink {original} delivered {destination}, and the sink {name} delivers to {address}. "
        f"If that is the same destination, add --same-destination {name}, and delivered rows are not sent again. "
        f"If not, add --other-destination {name}, and it gets all rows. Nothing was changed",
        kind="destination_unclear",
    )


def recorded_addresses(configs: Iterable[Path]) -> dict[str, str]:
    """Return the original's destinations by sink name, from its config files; the first file counts."""
    found: dict[str, str] = {}
    for path in configs:
        try:
            sinks = json.loads(path.read_bytes())["sinks"]
            settings = {name: each["config"] for name, each in sinks.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        for name, values in settings.items():
            if isinstance(values, dict) and (address := _configured_address(values)) is not None:
                found.setdefault(name, address)
    return found


def _configured_address(settings: Mapping[str, Any]) -> str | None:
    """Return the address of a server `url`, a directory `dir` or a bucket; None for other destinations."""
    with suppress(ConfigError, ValueError):
        if isinstance(url := settings.get("url"), str):
            return normalise_url(url.rstrip("/").removesuffix("/v1"))
        if isinstance(folder := settings.get("dir"), str):
            return parse_location({"destination": folder}).address
        if isinstance(bucket := settings.get("bucket"), str):
            prefix, endpoint = settings.get("prefix") or "", settings.get("endpoint_url") or ""
            return parse_location({"destination": f"s3://{bucket}/{prefix}", "endpoint": endpoint}).address
    return None


@dataclass(frozen=True)
class WatermarkClaim:
    """The original's statement that a sink of ours has, at this address, each partition up to an old sequence."""

    sink: str
    address: str
    through: Mapping[str, int]
    """By the partition's name."""

    def delivered_mask(self, file: SurveyedFile) -> pa.Array | None:
        """Mask the file's rows that were delivered; None if the claim does not cover the file."""
        through = self.through.get(file.partition.name)
        return None if through is None else pc.fill_null(pc.less_equal(file.seqs, through), True)


@dataclass(frozen=True)
class StreamPosition:
    """The stream continues after `position` of this import, or else after the sequence `seq`."""

    key: StreamKey
    address: str
    position: int
    seq: int
    current: int
    """The stream's current watermark."""

    @property
    def advances(self) -> bool:
        return self.position > 0 or self.seq > self.current

    def watermark(self, after: int, high_water: int) -> int:
        """Return the watermark in a range that starts after a sequence. Never above the source's newest row."""
        return max(self.seq, min(after + self.position, high_water)) if self.position else self.seq


def resolve_positions(
    claims: Sequence[WatermarkClaim], survey: CacheSurvey, numbering: RowNumbering, target: OpenTable
) -> list[StreamPosition]:
    """Return the position of each stream of the claims that has rows. Raise HypError if one cannot be determined.

    Imported rows are numbered in the order of their old sequences, so the delivered rows of a source come first and one
    number tells how many they are. That number may become a stream's watermark only if all rows of the source between
    the stream's present watermark and that number were delivered too: rows that this home already had, and has not
    delivered itself, must be among those that the original delivered (recognised by their keys). If they are not,
    nothing is changed and the error tells the user what to do first.
    """
    name = target.dataset.name
    positions = []
    with target.store.reading() as connection:
        high_water = flushes.load_high_water(connection, name).get(name, {})
        for claim in claims:
            files = [each for each in survey.files if claim.delivered_mask(each) is not None]
            for source in sorted({source for each in files for source in each.sources}):
                key = StreamKey(claim.sink, name, source)
                last = high_water.get(source, 0)
                watermark = _present_watermark(connection, key, claim.address, target.home, last)
                positions.append(_StreamResolver(key, claim, watermark, last, survey, numbering, target).resolve())
    return positions


def _present_watermark(connection: Connection, key: StreamKey, address: str, home: Home, high_water: int) -> int:
    known = streams.list_streams(connection)
    stream = next((each for each in known if each.key == key), None)
    if stream is None and any(
        (each.key.dataset, each.key.source, each.address) == (key.dataset, key.source, address) for each in known
    ):
        raise _not_ready(key, f"another sink has delivered to {address}", f"hyp export {key.sink}")
    if stream is not None and stream.address != address:
        raise _not_ready(key, f"it was delivered to {stream.address} before", f"hyp export adopt {key.sink}")
    if streams.load_intent(connection, key) is not None:
        raise _not_ready(key, "a delivery is in progress", f"hyp export {key.sink}")
    lost = streams.is_history_lost(connection) if stream is None else stream.history == HISTORY_LOST
    watermark = stream.watermark if stream is not None else None
    if watermark is None and lost and read.count_rows_between(home, key.dataset, key.source, 0, high_water):
        raise _not_ready(key, "the delivery record of this home was lost", f"hyp export {key.sink}")
    return watermark or 0


@dataclass(frozen=True)
class _StreamResolver:
    key: StreamKey
    claim: WatermarkClaim
    watermark: int
    high_water: int
    """The newest committed sequence of the source."""
    survey: CacheSurvey
    numbering: RowNumbering
    target: OpenTable

    def resolve(self) -> StreamPosition:
        undelivered = self._count_undelivered(self.high_water)
        position, seq = self._highest_position(only_new=undelivered > 0), self.watermark
        if undelivered:
            already_here = {each for each in self._existing_seqs() if self.watermark < each <= self.high_water}
            seq = max(already_here, default=self.watermark)
            before = undelivered if position else self._count_undelivered(seq)
            if before > len(already_here):
                rows = before - len(already_here)
                reason = f"this home has {rows} undelivered rows that would be marked as delivered"
                raise _not_ready(self.key, reason, f"hyp export {self.key.sink}")
        return StreamPosition(self.key, self.claim.address, position, seq, self.watermark)

    def _count_undelivered(self, last: int) -> int:
        key = self.key
        return read.count_rows_between(self.target.home, key.dataset, key.source, self.watermark, last)

    def _highest_position(self, *, only_new: bool) -> int:
        """Return the highest position of a delivered row, or one that is new here; raise if an undelivered row precedes
        it."""
        highest, lowest = 0, None
        for file, positions in self.numbering.files:
            if self.key.source in file.sources:
                mask = self.claim.delivered_mask(file)
                delivered = pa.repeat(False, len(positions)) if mask is None else mask
                left = pc.min(positions.filter(pc.invert(delivered))).as_py()
                lowest = left if lowest is None or (left is not None and left < lowest) else lowest
                wanted = self._delivered_and_new(file, delivered) if only_new else delivered
                highest = max(highest, pc.max(positions.filter(wanted)).as_py() or 0)
        if lowest is not None and lowest < highest:
            raise HypError(
                f"{self.key}: the original delivered some of these rows but not all rows before them, so no single "
                f"watermark fits. To deliver all rows again, add --other-destination {self.key.sink}. Nothing was "
                "changed",
                kind="watermarks_interleave",
            )
        return highest

    def _delivered_and_new(self, file: SurveyedFile, delivered: pa.Array) -> pa.Array:
        wanted, dataset = delivered.to_pylist(), self.target.dataset
        held = self.target.index.find(key for key in _key_hashes(dataset, file) if key is not None)
        is_new = [key is None or key not in held for key in _key_hashes(dataset, file)]
        return pa.array([each and new for each, new in zip(wanted, is_new, strict=True)], pa.bool_())

    def _existing_seqs(self) -> Iterator[int]:
        """Yield our sequences of delivered rows that this home already has."""
        for file in self.survey.files:
            if self.key.source in file.sources and (delivered_mask := self.claim.delivered_mask(file)) is not None:
                keys = zip(_key_hashes(self.target.dataset, file), delivered_mask.to_pylist(), strict=True)
                delivered = (key for key, was_delivered in keys if was_delivered and key is not None)
                yield from self.target.index.find(delivered).values()


def _not_ready(key: StreamKey, reason: str, repair: str) -> HypError:
    return HypError(
        f"cannot continue the watermark of {key}: {reason}. Run this first: {repair}. Nothing was changed",
        kind="stream_not_ready",
        repair=repair,
    )


def _key_hashes(dataset: Dataset, file: SurveyedFile) -> Iterator[bytes | None]:
    """Yield the key hash that each live row will have here."""
    names = {name: of_file for of_file, name in file.columns.items()}
    wanted = [name for name in (dataset.key_column, *dataset.key_parts) if name in names]
    position = 0
    with pq.ParquetFile(file.data_file.path) as parquet:
        for batch in parquet.iter_batches(columns=[names[name] for name in wanted]):
            columns = [batch.column(names[name]).to_pylist() for name in wanted]
            for values in zip(*columns, strict=True):
                if position not in file.data_file.deleted:
                    key = dataset.key_of(dict(zip(wanted, values, strict=True)))
                    yield None if key is None else hash_key(dataset.name, key)
                position += 1
