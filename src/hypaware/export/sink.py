"""What a sink is: the seam between delivery and one kind of destination.

The driver owns plans, retries, watermarks and dead letters. A sink knows how to reach its destination, what the
destination already has, and how to hand it one chunk. Its one duty: *the same chunk twice is stored once*, whether
the first try's answer was lost or not. Everything is awaited and may be cancelled at any await; a cancelled `ship`
may or may not have landed, and the driver treats it so.

A plugin registers a `SinkType` by an entry point in the group `hypaware.sinks`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from hypaware.state.stream_key import StreamKey

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from hypaware.export.payload import Payload
    from hypaware.home import Home

T = TypeVar("T")


@dataclass(frozen=True)
class Chunk:
    """The rows of a stream whose sequence lies in (after, last]: what a destination takes or refuses as one."""

    id: str
    stream: StreamKey
    gateway_id: str
    incarnation: str
    after: int
    last: int


@dataclass(frozen=True)
class Destination:
    """Where rows really end up. `address` is what the config says; `id` is what the destination calls itself."""

    address: str
    id: str | None = None

    def is_same(self, bound: Destination) -> bool:
        """What calls itself by the same name is the same, wherever it is found now."""
        if self.id and bound.id:
            return self.id == bound.id
        return self.address == bound.address


@dataclass(frozen=True)
class Delivered:
    """What a destination has of one stream under one incarnation, by its own account."""

    last: int
    holes: tuple[tuple[int, int], ...] = ()
    """Ranges (after, last] below `last` that it does not have, also what lies below the first that it has. Chunks come
    in order, so these were refused, or somebody did without them: they are offered again."""


@dataclass(frozen=True)
class Limits:
    """How much one chunk holds at most; a single row may be larger."""

    rows: int
    bytes: int


class Refused(Exception):
    """The chunk is poison: as it is, it will never be taken, and nothing of it was stored."""


class Busy(Exception):
    """The destination asks for patience; nothing was stored. `after` in seconds if it said for how long."""

    def __init__(self, message: str, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after


class Unreachable(Exception):
    """No answer, or one that says nothing about the chunk: it may have landed."""


class Denied(Exception):
    """Nothing can be delivered before a person acts: wrong token, no permission, no such bucket."""

    def __init__(self, message: str, *, kind: str = "denied", repair: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.repair = repair


class Overlap(Exception):
    """The destination does not know the chunk's id but has rows of its range; nothing was stored now."""

    def __init__(self, covered: Delivered) -> None:
        super().__init__(f"delivered through {covered.last} already")
        self.covered = covered


class Sink(ABC):
    limits: Limits
    wants_sequence = False
    """Whether the tables to encode shall begin with the sequence (`_hyp_ingest_seq`); else they hold public columns."""

    @abstractmethod
    async def open(self) -> Destination:
        """Reaches the destination and says which one it is. Called once, before anything else."""

    @abstractmethod
    async def landed(self, chunk: Chunk) -> bool | None:
        """Whether the destination has this very chunk; None if it cannot be asked."""

    @abstractmethod
    async def delivered(self, stream: StreamKey, gateway_id: str, incarnation: str) -> Delivered | None:
        """What it has of the stream, all of it, under that incarnation; None if it cannot be asked."""

    @abstractmethod
    def encode(self, rows: pa.Table) -> Payload:
        """Public columns in the order of the sequence, in the form in which they travel. Runs on a thread."""

    @abstractmethod
    async def ship(self, chunk: Chunk, payload: Payload, acked_to: int) -> int:
        """Durable at the destination when it returns; the bytes that it took.

        `acked_to`: the client will never ask again about what lies at or below it.
        Raises Refused, Busy, Unreachable, Denied or Overlap; anything else counts as Unreachable.
        """

    @abstractmethod
    async def close(self) -> None: ...


class OnSpark(Protocol):
    def __call__(self, work: Callable[[SparkSession], T]) -> Awaitable[T]:
        """Runs the work on the thread that belongs to Spark."""
        ...


@dataclass(frozen=True)
class SinkSettings:
    """What a sink is made of."""

    name: str
    home: Home
    options: Mapping[str, Any]
    datasets: tuple[str, ...]
    gateway_id: str
    incarnation: str
    on_spark: OnSpark | None = field(default=None, compare=False)


@dataclass(frozen=True)
class SinkType:
    """A kind of sink, as it is registered."""

    name: str
    about: str
    address: Callable[[SinkSettings], str]
    """The destination as the config names it, in one spelling; asks nobody and imports nothing heavy."""
    make: Callable[[SinkSettings], Sink]
