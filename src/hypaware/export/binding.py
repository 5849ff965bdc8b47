"""The user's word on a sink that points elsewhere: `adopt` goes on from here, `resend` sends all of it.

Both change every stream of the sink that the state knows, under their locks and in one transaction, and then the side
file. Whoever dies in between leaves a side file that is a step behind, which the next change brings up to date.
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
"""What happens to a stream before it is bound anew; the dead letters that are dropped by it."""


@dataclass(frozen=True)
class Bound:
    """What became of one stream."""

    key: StreamKey
    was: str
    address: str
    watermark: int | None
    """None: the destination is asked; what it does not have is sent."""
    was_held: str | None
    letters_dropped: int

    def as_json(self) -> dict[str, object]:
        return {
            "dataset": self.key.dataset,
            "source": self.key.source,
            "was": self.was,
            "address": self.address,
            "watermark": self.watermark,
            "was_held": self.was_held,
            "letters_dropped": self.letters_dropped,
        }


def adopt(home: Home, config: Config, store: Store, sink: str) -> list[Bound]:
    """The streams go on where they are, at the address that the config says now; where a sink that is gone delivered
    there before, they go on from what it delivered.

    What an intent has not delivered yet goes there under its ids. A stream of which nobody knows what was delivered
    takes everything that came before its memory was lost as delivered. A chunk that may have arrived and is refused
    now becomes a dead letter: it is not lost, and it is not sent under other ids.
    """

    def change(connection: Connection, stream: Stream) -> int:
        if stream.held == OUTCOME:
            _set_aside(connection, stream)
        # Only where that is what it waits for: a destination that can be asked says itself what it has.
        if stream.watermark is None and stream.held == HISTORY:
            high_water = flushes.high_water(connection, stream.key.dataset).get(stream.key.dataset, {})
            identity = whose.load(connection)
            assert identity is not None
            # What came since is known not to have been sent.
            taken = min(high_water.get(stream.key.source, 0), identity.epochs()[-1].after)
            streams.raise_watermark(connection, stream.key, taken)
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
    """The streams begin anew at the address that the config says now; plans and dead letters are among all rows."""

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
    assert identity is not None, "a home that was opened has an identity"
    address = configured.address(home, config, identity, sink)
    if others := _also_there(home, config, identity, sink, address):
        raise HypError(
            f"the sink {others[0]} delivers to {address} too: two sinks to one destination would deliver each row "
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
            bound = [_rebound(connection, key, address, change) for key in sorted(keys)]
        if bound:
            mirror.write(home.mirror, store)
    return bound


def _also_there(home: Home, config: Config, identity: Identity, sink: str, address: str) -> list[str]:
    """Other sinks of the config with rows of the same datasets to the same place."""
    found = []
    for name, other in config.sinks.items():
        if name != sink and set(other.datasets) & set(config.sinks[sink].datasets):
            with suppress(HypError):
                if configured.address(home, config, identity, name) == address:
                    found.append(name)
    return found


def _remembered(store: Store, keys: set[StreamKey], address: str) -> dict[StreamKey, StreamKey]:
    """Of streams that are bound elsewhere: those of the same rows that know what was delivered to the address."""
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
        raise Retryable(f"{key} was renamed in this moment: nothing was changed", kind="stream_renamed")
    dropped = change(connection, before)
    streams.bind(connection, key, address, None)
    streams.release(connection, key)
    after = streams.load(connection, key)
    assert after is not None
    return Bound(key, before.address, address, after.watermark, before.held, dropped)


def _of_sink(store: Store, sink: str) -> set[StreamKey]:
    with store.reading() as connection:
        return {stream.key for stream in streams.all_streams(connection) if stream.key.sink == sink}
