"""`adopt` and `resend`: continue the streams of a sink at the destination that the config has now.

Both change every known stream of the sink, under their locks and in one transaction, and then write the mirror.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hypaware.config import Config
from hypaware.errors import HypError, Retryable
from hypaware.export import sink_registry
from hypaware.export.dead_letter_rows import make_letter
from hypaware.export.status import find_address, select_sinks
from hypaware.export.stream_locks import lock_streams
from hypaware.home import Home
from hypaware.state import dead_letters, flushes, mirror, streams
from hypaware.state.inherited_segments import inherited_ranges
from hypaware.state.store import Connection, load_identity
from hypaware.state.streams import Stream, StreamKey

if TYPE_CHECKING:
    from hypaware.state.store import StateStore

StreamChange = Callable[[Connection, Stream], int]
"""Changes a stream before it is bound to its new address. Returns the number of dead letters dropped."""


@dataclass(frozen=True)
class BindingChange:
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


def adopt(home: Home, config: Config, store: StateStore, sink: str) -> list[BindingChange]:
    """Continue the streams at the address that the config has now.

    If a removed sink delivered to that address before, its watermarks apply. If the delivery record was lost, every row
    that existed at that moment is treated as delivered; after a rollback, every row that may have arrived. A chunk that
    may have arrived and is refused now becomes a dead letter: it is neither lost nor sent under other ids.
    """

    def change(connection: Connection, stream: Stream) -> int:
        if stream.held == streams.HELD_OUTCOME_UNKNOWN:
            intent = streams.load_intent(connection, stream.key)
            if intent and intent.due:
                reason = f"it may have arrived before it was refused: {stream.last_error}"
                dead_letters.add_letter(connection, make_letter(stream.key, intent.due[0], reason), None)
                streams.finish_unsent_chunk(connection, stream.key, intent.due[0])
        if stream.held == streams.HELD_ROLLED_BACK:
            streams.set_history(connection, stream.key, streams.SKIP_DISPUTED)
        if stream.held == streams.HELD_COPIED:
            for _, last in inherited_ranges(connection, stream.key.dataset, stream.watermark or 0)[:1]:
                streams.raise_watermark(connection, stream.key, last)
        # Only if it is held for this: a destination that can be queried reports what it has.
        if stream.watermark is None and stream.held == streams.HELD_HISTORY_LOST:
            high_water = flushes.load_high_water(connection, stream.key.dataset).get(stream.key.dataset, {})
            identity = load_identity(connection)
            assert identity is not None
            # Rows after the last fork are known not to have been sent.
            skipped_to = min(high_water.get(stream.key.source, 0), identity.incarnation_ranges()[-1].after)
            streams.raise_watermark(connection, stream.key, skipped_to)
        return 0

    return _rebind_streams(home, config, store, sink, change, recall=True)


def resend(home: Home, config: Config, store: StateStore, sink: str) -> list[BindingChange]:
    """Restart the streams at the address that the config has now. Pending intents and dead letters are dropped.

    A stream that is held because the home was rolled back or copied continues instead, with all rows above its
    watermark.
    """

    def change(connection: Connection, stream: Stream) -> int:
        if stream.held == streams.HELD_ROLLED_BACK:
            streams.set_history(connection, stream.key, streams.RESEND_DISPUTED)
            return 0
        if stream.held == streams.HELD_COPIED:
            streams.set_history(connection, stream.key, streams.RESEND_INHERITED)
            return 0
        letters = dead_letters.list_stream_letters(connection, stream.key)
        streams.cancel_intent(connection, stream.key)
        dead_letters.drop_stream_letters(connection, stream.key)
        streams.reset_watermark(connection, stream.key)
        return len(letters)

    return _rebind_streams(home, config, store, sink, change)


def _rebind_streams(
    home: Home, config: Config, store: StateStore, sink: str, change: StreamChange, *, recall: bool = False
) -> list[BindingChange]:
    select_sinks(config, [sink])
    with store.reading() as connection:
        identity = load_identity(connection)
    assert identity is not None, "an opened home has an identity"
    address = sink_registry.sink_address(home, config, identity, sink)
    for name, other in config.sinks.items():
        shares_rows = name != sink and set(other.datasets) & set(config.sinks[sink].datasets)
        if shares_rows and find_address(home, config, identity, name)[0] == address:
            raise HypError(
                f"the sink {name} also delivers to {address}: two sinks with one destination would deliver each row "
                "twice. Nothing was changed",
                kind="destination_taken",
                repair="hyp config show",
            )
    with store.reading() as connection:
        known = streams.list_streams(connection)
    keys = {stream.key for stream in known if stream.key.sink == sink}
    # Each stream that is bound elsewhere → the stream of the same rows that was delivered to the address.
    remembered: dict[StreamKey, StreamKey] = {}
    for key in keys if recall else ():
        there = [each for each in known if replace(each.key, sink=sink) == key and each.address == address]
        if there and all(stream.key != key for stream in there):
            remembered[key] = max(there, key=lambda stream: stream.watermark or 0).key
    changes: list[BindingChange] = []
    with lock_streams(home, keys | set(remembered.values())):
        with store.transaction() as connection:
            for key, previous in remembered.items():
                streams.swap_streams(connection, key, previous)
            for key in sorted(keys):
                before = streams.load_stream(connection, key)
                if before is None:
                    raise Retryable(f"{key} was renamed at the same time; nothing was changed", kind="stream_renamed")
                dropped = change(connection, before)
                streams.bind_stream(connection, key, address, None)
                streams.release_stream(connection, key)
                after = streams.load_stream(connection, key)
                assert after is not None
                changes.append(BindingChange(key, before.address, address, after.watermark, before.held, dropped))
        if changes:
            mirror.write_mirror(home.mirror, store)
    return changes
