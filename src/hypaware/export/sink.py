"""The interface between delivery and one kind of destination.

The driver owns plans, retries, watermarks and dead letters. A sink connects to its destination, reports which rows the
destination has, and sends it one chunk. It has one duty: *the same chunk sent twice is stored once*, even if the
response to the first attempt was lost. Every method except `encode` can be cancelled at any await.

A plugin registers a `SinkType` by an entry point in the group `hypaware.sinks`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from hypaware.state.server_clocks import ServerClock
from hypaware.state.streams import StreamKey

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from hypaware.home import Home

T = TypeVar("T")


@dataclass(frozen=True)
class Chunk:
    """The rows of a stream with a sequence in (after, last]. A destination accepts or refuses them together."""

    id: str
    stream: StreamKey
    gateway_id: str
    incarnation: str
    after: int
    last: int
    is_fresh: bool = False
    """Whether it was never sent before. If the destination has any of its range, raise RangeOverlap."""
    is_disputed: bool = False
    """Whether some of its rows may have arrived under another incarnation, before this home was rolled back."""


@dataclass(frozen=True)
class Destination:
    """The place that receives the rows: `address` as configured, `id` as the destination reports it."""

    address: str
    id: str | None = None
    clock: ServerClock | None = field(default=None, compare=False)
    """What the destination's clock showed when it answered, if it says so."""

    def is_same(self, bound: Destination) -> bool:
        """Compare by id if both have one, otherwise by address. A destination that moved keeps its id."""
        if self.id and bound.id:
            return self.id == bound.id
        return self.address == bound.address


@dataclass(frozen=True)
class StreamCoverage:
    """The rows of one stream and one incarnation that a destination reports to have."""

    last: int
    holes: tuple[tuple[int, int], ...] = ()
    """Ranges (after, last] below `last` that are missing: refused, or skipped by a user. They are sent again."""

    @classmethod
    def from_ranges(cls, ranges: Iterable[tuple[int, int]]) -> StreamCoverage:
        """Return the coverage of ranges (after, last], in any order, overlapping or not."""
        last, holes = 0, []
        for after, through in sorted(ranges):
            if after > last:
                holes.append((last, after))
            last = max(last, through)
        return cls(last, tuple(holes))


@dataclass(frozen=True)
class ChunkLimits:
    """Maximum size of a chunk. A single row may exceed it."""

    rows: int
    bytes: int


class ChunkRefused(Exception):
    """The destination will never accept this chunk. Nothing of it was stored."""


class DestinationBusy(Exception):
    """The destination asks to wait. Nothing was stored. `after` is the requested delay in seconds, if any."""

    def __init__(self, message: str, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after


class DestinationUnreachable(Exception):
    """No response, or one that does not say whether the chunk was stored."""


class DestinationDenied(Exception):
    """A user must act before anything can be delivered: wrong token, no permission, no such bucket."""

    def __init__(self, message: str, *, kind: str = "denied", repair: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.repair = repair


class RangeOverlap(Exception):
    """The destination does not know the chunk's id but has rows in its range. Nothing was stored by this attempt."""

    def __init__(self, covered: StreamCoverage) -> None:
        super().__init__(f"already delivered up to {covered.last}")
        self.covered = covered


class Sink(ABC):
    limits: ChunkLimits
    keeps_ids = False
    """Whether the destination never refuses a chunk that it has, sent again under the same id."""
    wants_sequence = False
    """Whether tables passed to `encode` begin with the sequence (`_hyp_ingest_seq`); otherwise public columns only."""

    @abstractmethod
    async def open(self) -> Destination:
        """Connect to the destination and identify it. Called once, before any other method."""

    @abstractmethod
    async def has_chunk(self, chunk: Chunk) -> bool | None:
        """Return whether the destination has exactly this chunk, or None if it cannot answer."""

    @abstractmethod
    async def coverage(self, stream: StreamKey, gateway_id: str, incarnation: str) -> StreamCoverage | None:
        """Return everything the destination has of the stream under that incarnation, or None if it cannot answer."""

    async def highest(self, stream: StreamKey, gateway_id: str, incarnation: str, above: int) -> int | None:
        """Return the highest sequence that the destination has of the stream under that incarnation.

        None if it cannot answer. Called in every round, and only compared with `above`: a sink for which `coverage` is
        expensive overrides this.
        """
        found = await self.coverage(stream, gateway_id, incarnation)
        return found.last if found else None

    def drops_known_rows(self) -> bool:
        """Return whether the destination drops a row that it has under another incarnation, by the row's dedupe key."""
        return False

    @abstractmethod
    def encode(self, rows: pa.Table) -> Payload:
        """Encode rows, given in sequence order, for transport. Runs on a worker thread."""

    def pack(self, payload: Payload) -> Payload:
        """Prepare the payload of one chunk for `ship`: join, compress, hash.

        Runs on a worker thread, usually while the previous chunk is sent. Nothing may leave this machine here. `ship`
        may also be given a payload that was not packed.
        """
        return payload

    @abstractmethod
    async def ship(self, chunk: Chunk, payload: Payload, acked_to: int) -> int:
        """Send the chunk and return the number of bytes accepted. The chunk is durable when this returns.

        `acked_to`: the client will never query again for a sequence at or below it.
        Raises ChunkRefused, RangeOverlap, DestinationBusy, DestinationUnreachable or DestinationDenied. Any other
        exception counts as DestinationUnreachable.
        """

    @abstractmethod
    async def close(self) -> None: ...


class Payload(Protocol):
    @property
    def sizes(self) -> Sequence[int]:
        """Bytes of each row, as `ChunkLimits.bytes` counts them."""
        ...

    def slice(self, start: int, stop: int) -> Payload: ...


@dataclass(frozen=True)
class LinesPayload:
    """One encoded row per line, line end included."""

    lines: Sequence[bytes]

    @cached_property
    def sizes(self) -> Sequence[int]:
        return [len(line) for line in self.lines]

    def slice(self, start: int, stop: int) -> LinesPayload:
        return LinesPayload(self.lines[start:stop])


@dataclass(frozen=True)
class TablePayload:
    """A table that is encoded as a whole. Sizes are those of its values in memory."""

    table: pa.Table

    @cached_property
    def sizes(self) -> Sequence[int]:
        # Imported here: commands that only look at the configured sinks must not load Arrow.
        import pyarrow as pa
        import pyarrow.compute as pc

        total = pa.array([0] * len(self.table), pa.int64())
        for column in self.table.columns:
            if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
                lengths = pc.cast(pc.fill_null(pc.binary_length(column), 0), pa.int64())
                total = pc.add(total, lengths.combine_chunks())
            elif column.null_count < len(column):
                total = pc.add(total, 8)
        sizes: list[int] = total.to_pylist()
        return sizes

    def slice(self, start: int, stop: int) -> TablePayload:
        return TablePayload(self.table.slice(start, stop - start))


class SparkRunner(Protocol):
    def __call__(self, work: Callable[[SparkSession], T]) -> Awaitable[T]:
        """Run the work on the thread that owns the Spark session."""
        ...


@dataclass(frozen=True)
class SinkSettings:
    name: str
    home: Home
    options: Mapping[str, Any]
    datasets: tuple[str, ...]
    gateway_id: str
    incarnation: str
    on_spark: SparkRunner | None = field(default=None, compare=False)


@dataclass(frozen=True)
class SinkType:
    name: str
    about: str
    address: Callable[[SinkSettings], str]
    """Return the configured destination in one canonical spelling. Uses no network and imports nothing heavy."""
    make: Callable[[SinkSettings], Sink]
