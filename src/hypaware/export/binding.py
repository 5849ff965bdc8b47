"""Apply the user's decision about a sink that points elsewhere: `adopt` continues, `resend` sends all rows.

Both change every known stream of the sink, under their locks and in one transaction, and then write the mirror. A crash
in between leaves a mirror that is one step behind; the next change updates it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from hypaware.config import Config
from hypaware.errors import HypError, Retryable
from hypaware.export import configured
from hypaware.export.locks import stream_locks
from hypaware.home import Home
from hypaware.state import dead_letters, flushes, intents, mirror, streams, whose
from hypaware.state.dead_letters import DeadLetter
from hypaware.state.identity import Identity
from hypaware.state.stream_key import StreamKey
from hypaware.state.streams import HISTORY, OUTCOME, Stream

if TYPE_CHECKING:
    from hypaware.state.store import Store

Change = Callable[[Connection, Stream], int]
"""Changes a stream before it is bound to its new address. Returns the number of dead letters dropped."""


@dataclass(frozen=True)
class Bound:
    """The change made to one stream."""

    key: StreamKey
    previous_address: str
    address: str
    watermark: int | None
    """None: the destination is queried, and rows that it lacks are sent."""
    previous_hold: str | None
    letters_dropped: int

    def as_json(self) -> dict[str, object]:
        return {
            "dataset": self.key.dataset,
            "source": self.key.source,
            "was": self.previous_address,
            "address": self.address,
            "watermark": self.watermark,
            "was_held": self.previous_hold,
            "letters_dropped": self.letters_dropped,
        }


def adopt(home: Home, config: Config, store: Store, sink: str) -> list[Bound]:
    """Continue the streams at the address that the config has now.

    If a removed sink delivered to that address before, its watermarks apply. Undelivered chunks of a pending intent are
    sent there under their ids. If the delivery record was lost, every row that existed at that moment is treated as
    delivered. A chunk that may have arrived and is refused now becomes a dead letter: it is neither lost nor sent under
    other ids.
    """

    def change(connection: Connection, stream: Stream) -> int:
        if stream.held == OUTCOME:
            _set_aside(connection, stream)
        # Only if it is held for this: a destination that can be queried reports what it has.
        if stream.watermark is None and stream.held == HISTORY:
            high_water = flushes.high_water(connection, stream.key.dataset).get(stream.key.dataset, {})
            identity = whose.load(connection)
            assert identity is not None
            # Rows after the last fork are known not to have been sent.
            skipped_to = min(high_water.get(stream.key.source, 0), identity.incarnation_ranges()[-1].after)
            streams.raise_watermark(connection, stream.key, skipped_to)
        return 0

    return _rebind(home, config, store, sink, change, recall=True)


def _set_aside(connection: Connection, stream: Stream) -> None:
    intent = intents.pending(connection, stream.key)
    if intent and intent.due:
        chunk = intent.due[0]
        reason = f"it may have arrived before it was refused: {stream.last_error}"
        letter = DeadLetter(
            chunk.id, stream.key, chunk.incarnation, chunk.after, chunk.last, chunk.rows, reason, streams.now()
        )
        dead_letters.bury(connection, letter, None)
        intents.drop_chunk(connection, stream.key, chunk)


def resend(home: Home, config: Config, store: Store, sink: str) -> list[Bound]:
    """Restart the streams at the address that the config has now. Pending intents and dead letters are dropped."""

    def change(connection: Connection, stream: Stream) -> int:
        letters = [each for each in dead_letters.all_letters(connection, sink) if each.key == stream.key]
        intents.cancel(connection, stream.key)
        dead_letters.drop_of(connection, stream.key)
        streams.forget_watermark(connection, stream.key)
        return len(letters)

    return _rebind(home, config, store, sink, change)


def _rebind(
    home: Home, config: Config, store: Store, sink: str, change: Change, *, recall: bool = False
) -> list[Bound]:
    configured.chosen(config, [sink])
    with store.reading() as connection:
        identity = whose.load(connection)
    assert identity is not None, "an opened home has an identity"
    address = configured.address(home, config, identity, sink)
    if others := _also_there(home, config, identity, sink, address):
        raise HypError(
            f"the sink {others[0]} also delivers to {address}: two sinks with one destination would deliver each row "
            "twice. Nothing was changed",
            kind="destination_taken",
            repair="hyp config show",
        )
    keys = _of_sink(store, sink)
    remembered = _remembered(store, keys, address) if recall else {}
    with stream_locks(home, keys | set(remembered.values())):
        with store.transaction() as connection:
            for key, other in remembered.items():
                streams.exchange(connection, key, other)
            changes = [_rebound(connection, key, address, change) for key in sorted(keys)]
        if changes:
            mirror.write(home.mirror, store)
    return changes


def _also_there(home: Home, config: Config, identity: Identity, sink: str, address: str) -> list[str]:
    """Return the other configured sinks that deliver rows of the same datasets to the address."""
    found = []
    for name, other in config.sinks.items():
        if name != sink and set(other.datasets) & set(config.sinks[sink].datasets):
            with suppress(HypError):
                if configured.address(home, config, identity, name) == address:
                    found.append(name)
    return found


def _remembered(store: Store, keys: set[StreamKey], address: str) -> dict[StreamKey, StreamKey]:
    """Map each stream that is bound elsewhere to the stream of the same rows that was delivered to the address."""
    with store.reading() as connection:
        known = {stream.key: stream for stream in streams.all_streams(connection)}
    found = {}
    for key in keys:
        there = [
            stream
            for stream in known.values()
            if (stream.key.dataset, stream.key.source) == (key.dataset, key.source) and stream.address == address
        ]
        if there and all(stream.key != key for stream in there):
            found[key] = max(there, key=lambda stream: stream.watermark or 0).key
    return found


def _rebound(connection: Connection, key: StreamKey, address: str, change: Change) -> Bound:
    before = streams.load(connection, key)
    if before is None:
        raise Retryable(f"{key} was renamed at the same time; nothing was changed", kind="stream_renamed")
    dropped = change(connection, before)
    streams.bind(connection, key, address, None)
    streams.release(connection, key)
    after = streams.load(connection, key)
    assert after is not None
    return Bound(key, before.address, address, after.watermark, before.held, dropped)


def _of_sink(store: Store, sink: str) -> set[StreamKey]:
    with store.reading() as connection:
        return {stream.key for stream in streams.all_streams(connection) if stream.key.sink == sink}
