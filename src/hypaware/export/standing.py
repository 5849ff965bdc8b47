"""The state of every stream, read in one transaction, and whether a round would have anything to do.

Needs no Spark, no network and no lake. The streams are those of the config (each sink, its datasets, the sources that
the lake has of them) and those that only the state still knows. The latter are `removed`: nothing is delivered to them
unless the config lists them again.
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
    """A pending intent: its range (after, last] and how many of its chunks are done."""

    after: int
    last: int
    chunks_total: int
    chunks_acked: int


@dataclass(frozen=True)
class Standing:
    key: StreamKey
    high_water: int
    address: str | None
    """The configured address; None if the stream was removed from the config or its kind of sink is broken."""
    stream: Stream | None = None
    """None before its first round."""
    pending: Pending | None = None
    dead_letters: int = 0
    removed: bool = False
    error: HypError | None = None
    """Why a configured stream has no address."""

    @property
    def watermark(self) -> int | None:
        """None only if an earlier state may have delivered rows and the record of them was lost."""
        if self.stream is None:
            return 0
        if self.stream.watermark is None:
            return None if self.stream.history == LOST else 0
        return self.stream.watermark

    @property
    def held(self) -> str | None:
        """Why the stream is held for the user; the stream's `last_error` has the message."""
        return self.stream.held if self.stream else None

    @property
    def points_elsewhere(self) -> bool:
        return self.stream is not None and self.address is not None and self.stream.address != self.address

    @property
    def is_idle(self) -> bool:
        """Whether all rows of the lake are delivered to the configured address and no intent is pending."""
        if self.removed:
            return True
        known = self.stream is not None and self.stream.watermark == self.high_water
        return known and not (self.points_elsewhere or self.pending or self.held or self.error)

    def due_at(self, now: datetime, *, config_changed: bool = False) -> datetime | None:
        """Return the time from which a round makes sense, or None if there is nothing to do.

        A held or failed stream is retried now and then, and at once if the config changed. A time that the destination
        asked for is always respected.
        """
        if self.is_idle or self.error:
            return None
        if (stream := self.stream) is None:
            return now
        times = [now]
        if stream.retry_at is not None:
            times.append(stream.retry_at)
        updated = stream.updated_at or now
        if stream.held is not None and not config_changed:
            times.append(updated + HELD_AGAIN)
        elif stream.last_error is not None and stream.retry_at is None and not config_changed:
            times.append(updated + FAILED_AGAIN)
        # A record from the future: the clock was set back, so these times cannot be trusted.
        return max(times) if updated <= now else now


@dataclass(frozen=True)
class _Where:
    address: str | None
    error: HypError | None = None


def standings(home: Home, config: Config, store: Store, sinks: Collection[str] | None = None) -> list[Standing]:
    """Return the streams of the given sinks, or of all sinks, including those that the config no longer has."""
    with store.reading() as connection:
        identity = whose.load(connection)
        if identity is None:
            raise StateError(f"the state {store.path} has no identity")
        known = {stream.key: stream for stream in streams.all_streams(connection)}
        pending = {key: Pending(*facts) for key, facts in intents.progress(connection).items()}
        letters = Counter(letter.key for letter in dead_letters.all_letters(connection))
        high_water = flushes.high_water(connection)
    wanted = config.sinks.keys() | {key.sink for key in known} if sinks is None else set(sinks)
    where = {sink: _where(home, config, identity, sink) for sink in wanted & config.sinks.keys()}
    configured_keys = {
        StreamKey(sink, dataset, source)
        for sink in where
        for dataset in config.sinks[sink].datasets
        for source in high_water.get(dataset, {})
    }
    known_keys = {key for key in known if key.sink in wanted}
    return [
        Standing(
            key=key,
            high_water=high_water.get(key.dataset, {}).get(key.source, 0),
            address=where[key.sink].address if key.sink in where else None,
            stream=known.get(key),
            pending=pending.get(key),
            dead_letters=letters[key],
            # Regardless of its source: a lake that was rolled back behind a stream must not hide the stream.
            removed=key.sink not in where or key.dataset not in config.sinks[key.sink].datasets,
            error=where[key.sink].error if key.sink in where else None,
        )
        for key in sorted(configured_keys | known_keys)
    ]


def _where(home: Home, config: Config, identity: Identity, sink: str) -> _Where:
    try:
        return _Where(configured.address(home, config, identity, sink))
    except HypError as error:
        return _Where(None, error)
