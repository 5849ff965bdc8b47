"""What a watermark of the original means in our sequences.

Rows are numbered in the order of their old sequences, so what was delivered is the first of what is taken over, per
source, and one number says how much that is. It may become a stream's watermark only if everything of the source that
lies between the stream's present watermark and that number was delivered too: rows that this home had before, and has
not delivered itself, must be among those that the original delivered (they are known by their keys). Where they are
not, nothing is changed, and the user is told what to do first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from sqlalchemy import Connection

from hypaware.errors import HypError
from hypaware.home import Home
from hypaware.lake import counting
from hypaware.lake.build import key_hash
from hypaware.lake.keys import KeyIndex
from hypaware.model.datasets import Dataset
from hypaware.state import flushes, intents, streams
from hypaware.state.stream_key import StreamKey
from hypaware.state.streams import LOST, Stream
from hypaware.takeover.numbering import Numbered, Numbering
from hypaware.takeover.survey import Found, Survey


@dataclass(frozen=True)
class Claim:
    """A sink of ours has, at this address, each partition up to an old sequence."""

    sink: str
    address: str
    through: Mapping[str, int]
    """By the partition's name."""

    def has(self, found: Found) -> pa.Array | None:
        """Which of the file's rows it has; None if nobody says anything about them."""
        through = self.through.get(found.partition.name)
        return None if through is None else pc.fill_null(pc.less_equal(found.seqs, through), True)


@dataclass(frozen=True)
class Settled:
    """The stream goes on after the number `place` of this take-over, or else after the sequence `seq`."""

    key: StreamKey
    address: str
    place: int
    seq: int
    present: int
    """The stream's watermark so far."""

    @property
    def rises(self) -> bool:
        return self.place > 0 or self.seq > self.present

    def watermark(self, after: int, high_water: int) -> int:
        """In a range that begins after a sequence. Never above the newest row of the source."""
        return max(self.seq, min(after + self.place, high_water)) if self.place else self.seq


@dataclass(frozen=True)
class Bearings:
    """What the home knows, and how to ask it."""

    home: Home
    dataset: Dataset
    index: KeyIndex
    high_water: Mapping[str, int]

    def undelivered(self, source: str, after: int, last: int) -> int:
        return counting.rows_between(self.home, self.dataset.name, source, after, last)


def settle(
    claims: Sequence[Claim], found: Survey, numbering: Numbering, bearings: Bearings, connection: Connection
) -> list[Settled]:
    """For each stream of the claims that has rows: where it goes on. Raises HypError where that cannot be."""
    settled = []
    for claim in claims:
        files = [each for each in found.files if claim.has(each) is not None]
        for source in sorted({source for each in files for source in each.sources}):
            key = StreamKey(claim.sink, bearings.dataset.name, source)
            watermark = _present_watermark(connection, key, claim.address, bearings)
            settled.append(_Stream(key, claim, source, watermark, found, numbering, bearings).settled())
    return settled


def _present_watermark(connection: Connection, key: StreamKey, address: str, bearings: Bearings) -> int:
    known = streams.all_streams(connection)
    stream = next((each for each in known if each.key == key), None)
    if stream is None and any(_same_rows(each, key, address) for each in known):
        raise _first(key, f"another sink delivered to {address} before", f"hyp export {key.sink}")
    if stream is not None and stream.address != address:
        raise _first(key, f"it was delivered to {stream.address} so far", f"hyp export adopt {key.sink}")
    if intents.pending(connection, key) is not None:
        raise _first(key, "a delivery of it is under way", f"hyp export {key.sink}")
    lost = streams.is_memory_lost(connection) if stream is None else stream.history == LOST
    watermark = stream.watermark if stream is not None else None
    if watermark is None and lost and bearings.undelivered(key.source, 0, bearings.high_water.get(key.source, 0)):
        raise _first(key, "nobody knows what this home has delivered of it", f"hyp export {key.sink}")
    return watermark or 0


def _same_rows(other: Stream, key: StreamKey, address: str) -> bool:
    return (other.key.dataset, other.key.source, other.address) == (key.dataset, key.source, address)


@dataclass(frozen=True)
class _Stream:
    key: StreamKey
    claim: Claim
    source: str
    watermark: int
    found: Survey
    numbering: Numbering
    bearings: Bearings

    def settled(self) -> Settled:
        high_water = self.bearings.high_water.get(self.source, 0)
        waiting = self.bearings.undelivered(self.source, self.watermark, high_water)
        if not waiting:
            return self._at(self._highest_place(lambda numbered, has: has), 0)
        here = {seq for seq in self._seqs_here() if self.watermark < seq <= high_water}
        place = self._highest_place(self._and_not_here)
        if place and len(here) < waiting:
            raise self._not_all(waiting - len(here))
        reached = max(here, default=0)
        if not place and here:
            between = self.bearings.undelivered(self.source, self.watermark, reached)
            if between > len(here):
                raise self._not_all(between - len(here))
        return self._at(place, reached)

    def _at(self, place: int, seq: int) -> Settled:
        return Settled(self.key, self.claim.address, place, max(self.watermark, seq), self.watermark)

    def _highest_place(self, chosen: Callable[[Numbered, pa.Array], pa.Array]) -> int:
        """The last of the numbers of rows that were delivered; none that were not may come before it."""
        highest, lowest = 0, None
        for numbered in self.numbering.files:
            if self.source in numbered.found.sources:
                has = self.claim.has(numbered.found)
                delivered = pa.repeat(False, len(numbered.places)) if has is None else has
                left = pc.min(numbered.places.filter(pc.invert(delivered))).as_py()
                lowest = left if lowest is None or (left is not None and left < lowest) else lowest
                highest = max(highest, pc.max(numbered.places.filter(chosen(numbered, delivered))).as_py() or 0)
        if lowest is not None and lowest < highest:
            raise HypError(
                f"{self.key}: the original has delivered some of these rows, and others that lie before them not, so "
                f"no one number says how far it came. With --other-destination {self.key.sink} the sink gets all "
                "of them. Nothing was changed",
                kind="watermarks_interleave",
            )
        return highest

    def _and_not_here(self, numbered: Numbered, delivered: pa.Array) -> pa.Array:
        found, wanted = numbered.found, delivered.to_pylist()
        held = self.bearings.index.find(key for key in _keys(self.bearings.dataset, found) if key is not None)
        there = [key is None or key not in held for key in _keys(self.bearings.dataset, found)]
        return pa.array([each and new for each, new in zip(wanted, there, strict=True)], pa.bool_())

    def _seqs_here(self) -> Iterator[int]:
        """Our sequences of delivered rows that this home has already."""
        for found in self.found.files:
            if self.source in found.sources and (has := self.claim.has(found)) is not None:
                keys = zip(_keys(self.bearings.dataset, found), has.to_pylist(), strict=True)
                yield from self.bearings.index.find(key for key, had in keys if had and key is not None).values()

    def _not_all(self, rows: int) -> HypError:
        why = f"this home has {rows} rows that were not delivered, and would have to be taken as delivered"
        return _first(self.key, why, f"hyp export {self.key.sink}")


def _first(key: StreamKey, why: str, repair: str) -> HypError:
    return HypError(
        f"the watermark of {key} cannot be taken over: {why}. Do this first: {repair}. Nothing was changed",
        kind="stream_not_ready",
        repair=repair,
    )


def _keys(dataset: Dataset, found: Found) -> Iterator[bytes | None]:
    """The key hash of each live row, as the row will have it here."""
    names = {name: of_file for of_file, name in found.columns.items()}
    wanted = [name for name in (dataset.key_column, *dataset.key_parts) if name in names]
    place = 0
    with pq.ParquetFile(found.file.path) as held:
        for batch in held.iter_batches(columns=[names[name] for name in wanted]):
            columns = [batch.column(names[name]).to_pylist() for name in wanted]
            for values in zip(*columns, strict=True):
                if place not in found.file.deleted:
                    key = dataset.key_of(dict(zip(wanted, values, strict=True)))
                    yield None if key is None else key_hash(dataset.name, key)
                place += 1


def high_water_of(connection: Connection, dataset: str) -> dict[str, int]:
    return flushes.high_water(connection, dataset).get(dataset, {})
