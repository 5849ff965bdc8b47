"""Converting the original's watermarks into watermarks of our streams.

Imported rows are numbered in the order of their old sequences, so the delivered rows of a source come first and one
number tells how many they are. That number may become a stream's watermark only if all rows of the source between the
stream's present watermark and that number were delivered too: rows that this home already had, and has not delivered
itself, must be among those that the original delivered (recognised by their keys). If they are not, nothing is changed
and the error tells the user what to do first.
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
    """The original's statement that a sink of ours has, at this address, each partition up to an old sequence."""

    sink: str
    address: str
    through: Mapping[str, int]
    """By the partition's name."""

    def delivered_mask(self, file: Found) -> pa.Array | None:
        """Mask the file's rows that were delivered; None if the claim does not cover the file."""
        through = self.through.get(file.partition.name)
        return None if through is None else pc.fill_null(pc.less_equal(file.seqs, through), True)


@dataclass(frozen=True)
class Settled:
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


@dataclass(frozen=True)
class Bearings:
    """What the home knows about its rows and deliveries."""

    home: Home
    dataset: Dataset
    index: KeyIndex
    high_water: Mapping[str, int]

    def undelivered(self, source: str, after: int, last: int) -> int:
        return counting.rows_between(self.home, self.dataset.name, source, after, last)


def settle(
    claims: Sequence[Claim], survey: Survey, numbering: Numbering, basis: Bearings, connection: Connection
) -> list[Settled]:
    """Return the position of each stream of the claims that has rows. Raise HypError if one cannot be determined."""
    positions = []
    for claim in claims:
        files = [each for each in survey.files if claim.delivered_mask(each) is not None]
        for source in sorted({source for each in files for source in each.sources}):
            key = StreamKey(claim.sink, basis.dataset.name, source)
            watermark = _present_watermark(connection, key, claim.address, basis)
            positions.append(_Stream(key, claim, source, watermark, survey, numbering, basis).resolve())
    return positions


def _present_watermark(connection: Connection, key: StreamKey, address: str, basis: Bearings) -> int:
    known = streams.all_streams(connection)
    stream = next((each for each in known if each.key == key), None)
    if stream is None and any(_same_rows(each, key, address) for each in known):
        raise _not_ready(key, f"another sink has delivered to {address}", f"hyp export {key.sink}")
    if stream is not None and stream.address != address:
        raise _not_ready(key, f"it was delivered to {stream.address} before", f"hyp export adopt {key.sink}")
    if intents.pending(connection, key) is not None:
        raise _not_ready(key, "a delivery is in progress", f"hyp export {key.sink}")
    lost = streams.is_memory_lost(connection) if stream is None else stream.history == LOST
    watermark = stream.watermark if stream is not None else None
    if watermark is None and lost and basis.undelivered(key.source, 0, basis.high_water.get(key.source, 0)):
        raise _not_ready(key, "the delivery record of this home was lost", f"hyp export {key.sink}")
    return watermark or 0


def _same_rows(other: Stream, key: StreamKey, address: str) -> bool:
    return (other.key.dataset, other.key.source, other.address) == (key.dataset, key.source, address)


@dataclass(frozen=True)
class _Stream:
    key: StreamKey
    claim: Claim
    source: str
    watermark: int
    survey: Survey
    numbering: Numbering
    basis: Bearings

    def resolve(self) -> Settled:
        high_water = self.basis.high_water.get(self.source, 0)
        undelivered = self.basis.undelivered(self.source, self.watermark, high_water)
        if not undelivered:
            return self._position(self._highest_position(lambda numbered_file, delivered_mask: delivered_mask), 0)
        already_here = {seq for seq in self._existing_seqs() if self.watermark < seq <= high_water}
        position = self._highest_position(self._delivered_and_new)
        if position and len(already_here) < undelivered:
            raise self._undelivered_error(undelivered - len(already_here))
        highest_here = max(already_here, default=0)
        if not position and already_here:
            between = self.basis.undelivered(self.source, self.watermark, highest_here)
            if between > len(already_here):
                raise self._undelivered_error(between - len(already_here))
        return self._position(position, highest_here)

    def _position(self, position: int, seq: int) -> Settled:
        return Settled(self.key, self.claim.address, position, max(self.watermark, seq), self.watermark)

    def _highest_position(self, select: Callable[[Numbered, pa.Array], pa.Array]) -> int:
        """Return the highest position of a delivered row; raise if an undelivered row precedes it."""
        highest, lowest = 0, None
        for numbered_file in self.numbering.files:
            if self.source in numbered_file.file.sources:
                delivered_mask = self.claim.delivered_mask(numbered_file.file)
                delivered = pa.repeat(False, len(numbered_file.positions)) if delivered_mask is None else delivered_mask
                left = pc.min(numbered_file.positions.filter(pc.invert(delivered))).as_py()
                lowest = left if lowest is None or (left is not None and left < lowest) else lowest
                highest = max(
                    highest, pc.max(numbered_file.positions.filter(select(numbered_file, delivered))).as_py() or 0
                )
        if lowest is not None and lowest < highest:
            raise HypError(
                f"{self.key}: the original delivered some of these rows but not all rows before them, so no single "
                f"watermark fits. To deliver all rows again, add --other-destination {self.key.sink}. Nothing was "
                "changed",
                kind="watermarks_interleave",
            )
        return highest

    def _delivered_and_new(self, numbered_file: Numbered, delivered: pa.Array) -> pa.Array:
        file, wanted = numbered_file.file, delivered.to_pylist()
        held = self.basis.index.find(key for key in _keys(self.basis.dataset, file) if key is not None)
        is_new = [key is None or key not in held for key in _keys(self.basis.dataset, file)]
        return pa.array([each and new for each, new in zip(wanted, is_new, strict=True)], pa.bool_())

    def _existing_seqs(self) -> Iterator[int]:
        """Yield our sequences of delivered rows that this home already has."""
        for file in self.survey.files:
            if self.source in file.sources and (delivered_mask := self.claim.delivered_mask(file)) is not None:
                keys = zip(_keys(self.basis.dataset, file), delivered_mask.to_pylist(), strict=True)
                yield from self.basis.index.find(
                    key for key, was_delivered in keys if was_delivered and key is not None
                ).values()

    def _undelivered_error(self, rows: int) -> HypError:
        reason = f"this home has {rows} undelivered rows that would be marked as delivered"
        return _not_ready(self.key, reason, f"hyp export {self.key.sink}")


def _not_ready(key: StreamKey, reason: str, repair: str) -> HypError:
    return HypError(
        f"cannot continue the watermark of {key}: {reason}. Run this first: {repair}. Nothing was changed",
        kind="stream_not_ready",
        repair=repair,
    )


def _keys(dataset: Dataset, file: Found) -> Iterator[bytes | None]:
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
                    yield None if key is None else key_hash(dataset.name, key)
                position += 1


def high_water_of(connection: Connection, dataset: str) -> dict[str, int]:
    return flushes.high_water(connection, dataset).get(dataset, {})
