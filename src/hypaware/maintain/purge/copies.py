"""Where copies of purged rows are: the destinations that received them, or may have."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection

from hypaware.maintain.purge.purging import Purging
from hypaware.state import dead_letters, intents, streams
from hypaware.state.store import Store
from hypaware.state.streams import Stream

Seqs = Mapping[tuple[str, str], "array[int]"]
"""Sequences of the rows, by dataset and source."""


def of(context: Purging, dataset: str, seqs: Seqs) -> list[dict[str, Any]]:
    """Return the copies of one dataset's rows. Call it while no delivery of its streams is running."""
    return told(context.store, {key: found for key, found in seqs.items() if key[0] == dataset})


def told(store: Store, seqs: Seqs) -> list[dict[str, Any]]:
    with store.reading() as connection:
        copies = [
            _copy(connection, stream, seqs[stream.key.dataset, stream.key.source])
            for stream in streams.all_streams(connection)
            if (stream.key.dataset, stream.key.source) in seqs
        ]
    return [each for each in copies if each["rows"] or each["rows_under_way"] or each["unknown"]]


def _within(seqs: Iterable[int], after: int, last: int) -> int:
    return sum(after < seq <= last for seq in seqs)


def _copy(connection: Connection, stream: Stream, seqs: Iterable[int]) -> dict[str, Any]:
    intent = intents.pending(connection, stream.key)
    sent = [(chunk.after, chunk.last) for chunk in intent.chunks if not chunk.unsent] if intent else []
    watermark = stream.watermark or 0
    dead_letter_ranges = [(letter.after, letter.last) for letter in dead_letters.of_stream(connection, stream.key)]
    delivered = sum(seq <= watermark for seq in seqs)
    delivered -= sum(_within(seqs, after, min(last, watermark)) for after, last in dead_letter_ranges)
    under_way = sum(_within(seqs, max(after, watermark), last) for after, last in sent)
    return {
        "sink": stream.key.sink,
        "destination": stream.address,
        "dataset": stream.key.dataset,
        "source": stream.key.source,
        "rows": delivered,
        "rows_under_way": under_way,
        "unknown": stream.watermark is None and stream.history == streams.LOST,
    }
