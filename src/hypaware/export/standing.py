"""Where every stream stands, in one view of the state, and whether a round of it would have anything to do.

Needs no Spark, no network and no lake. The streams are those of the config (each sink, its datasets, the sources that
the lake has of them) and those that the state remembers beside them, which are `removed`: nothing is delivered in them
unless the config takes them back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from hypaware.config import Config
from hypaware.errors import HypError, StateError
from hypaware.export import configured
from hypaware.home import Home
from hypaware.state import dead_letters, flushes, intents, streams, whose
from hypaware.state.identity import Identity
from hypaware.state.stream_key import StreamKey
from hypaware.state.streams import LOST, Stream

if TYPE_CHECKING:
    from hypaware.state.store import Store


FAILED_AGAIN = timedelta(minutes=5)
HELD_AGAIN = timedelta(hours=1)


@dataclass(frozen=True)
class Pending:
    """An intent on its way: the sequences (after, last], and how many of its chunks are settled."""

    after: int
    last: int
    chunks_total: int
    chunks_acked: int


@dataclass(frozen=True)
class Standing:
    key: StreamKey
    high_water: int
    address: str | None
    """As the config says now; None where it does not have the stream, or its kind of sink is broken."""
    stream: Stream | None = None
    """None while it has never had a round."""
    pending: Pending | None = None
    dead_letters: int = 0
    removed: bool = False
    trouble: HypError | None = None
    """Why there is no address though the config has the stream."""

    @property
    def watermark(self) -> int | None:
        """None only where an earlier state may have delivered rows and nobody remembers which."""
        if self.stream is None:
            return 0
        if self.stream.watermark is None:
            return None if self.stream.history == LOST else 0
        return self.stream.watermark

    @property
    def held(self) -> str | None:
        """Why it waits for its user; `last_error` of the stream says it in words."""
        return self.stream.held if self.stream else None

    @property
    def points_elsewhere(self) -> bool:
        return self.stream is not None and self.address is not None and self.stream.address != self.address

    @property
    def is_settled(self) -> bool:
        """Everything that the lake has of it is delivered, to where the config says, and nothing is under way."""
        if self.removed:
            return True
        known = self.stream is not None and self.stream.watermark == self.high_water
        return known and not (self.points_elsewhere or self.pending or self.held or self.trouble)

    def due_at(self, now: datetime, *, anew: bool = False) -> datetime | None:
        """From when on a round makes sense; None while there is nothing that one could do.

        A held stream waits for its user, one that failed for whatever was wrong: somebody looks at them now and then,
        and at once (`anew`) when the config is new. A time that the destination asked for is always kept.
        """
        if self.is_settled or self.trouble:
            return None
        if (stream := self.stream) is None:
            return now
        times = [now]
        if stream.retry_at is not None:
            times.append(stream.retry_at)
        written = stream.updated_at or now
        if stream.held is not None and not anew:
            times.append(written + HELD_AGAIN)
        elif stream.last_error is not None and stream.retry_at is None and not anew:
            times.append(written + FAILED_AGAIN)
        # Written in what is the future now: the clock went back, and these times are not to be believed.
        return max(times) if written <= now else now


@dataclass(frozen=True)
class _Where:
    address: str | None
    trouble: HypError | None = None


def standings(home: Home, config: Config, store: Store, sinks: Collection[str] | None = None) -> list[Standing]:
    """Of the given sinks, or of all, also those that the config no longer has."""
    with store.reading() as connection:
        identity = whose.load(connection)
        if identity is None:
            raise StateError(f"the state {store.path} does not say whose it is")
        known = {stream.key: stream for stream in streams.all_streams(connection)}
        pending = {key: Pending(*facts) for key, facts in intents.progress(connection).items()}
        letters = Counter(letter.key for letter in dead_letters.all_letters(connection))
        high_water = flushes.high_water(connection)
    wanted = config.sinks.keys() | {key.sink for key in known} if sinks is None else set(sinks)
    where = {sink: _where(home, config, identity, sink) for sink in wanted & config.sinks.keys()}
    declared = {
        StreamKey(sink, dataset, source)
        for sink in where
        for dataset in config.sinks[sink].datasets
        for source in high_water.get(dataset, {})
    }
    remembered = {key for key in known if key.sink in wanted}
    return [
        Standing(
            key=key,
            high_water=high_water.get(key.dataset, {}).get(key.source, 0),
            address=where[key.sink].address if key.sink in where else None,
            stream=known.get(key),
            pending=pending.get(key),
            dead_letters=letters[key],
            # Not by its source: where the lake was rolled back behind a stream, that must not hide the stream.
            removed=key.sink not in where or key.dataset not in config.sinks[key.sink].datasets,
            trouble=where[key.sink].trouble if key.sink in where else None,
        )
        for key in sorted(declared | remembered)
    ]


def _where(home: Home, config: Config, identity: Identity, sink: str) -> _Where:
    try:
        return _Where(configured.address(home, config, identity, sink))
    except HypError as trouble:
        return _Where(None, trouble)
