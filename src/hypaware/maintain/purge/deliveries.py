"""Purged rows in dead letters, and the destinations that received purged rows, or may have.

A dead letter keeps its chunk and its id; a replay sends the remaining rows. One without rows is dropped. The
destination's error message may quote a row, so it is removed too.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hypaware import faults
from hypaware.export.dead_letter_rows import pack_rows, unpack_rows
from hypaware.export.stream_locks import lock_stream
from hypaware.maintain.purge.context import PurgeContext, PurgeReport, RemovedRows
from hypaware.maintain.purge.selector import PurgeSelector
from hypaware.model import datasets
from hypaware.model.datasets import SOURCE
from hypaware.state import dead_letters, intents, mirror, streams
from hypaware.state.dead_letters import DeadLetter
from hypaware.state.store import Connection, StateStore
from hypaware.state.streams import Stream

_after_letters = faults.crash_point("maintain.purge.after-letters", "a dead letter no longer holds purged rows")
_TIMEOUT = 60.0
_PURGED_REASON = "removed by a purge"


def remove_from_dead_letters(context: PurgeContext, report: PurgeReport, removed_rows: RemovedRows) -> None:
    """Remove the rows from all dead letters and the messages that quote them."""
    for letter in _letters(context.store):
        if not _count_matching_rows(context.store, context.selector, letter):
            continue
        # Not while a replay of the same dead letter runs.
        with lock_stream(context.home, letter.key, _TIMEOUT):
            rows = _remove_rows(context, letter)
        report.letter_rows += rows
        report.letters += rows > 0
    _remove_quotes(context, removed_rows)


def _letters(store: StateStore) -> list[DeadLetter]:
    with store.reading() as connection:
        return dead_letters.list_letters(connection)


def _count_matching_rows(store: StateStore, selector: PurgeSelector, letter: DeadLetter) -> int:
    with store.reading() as connection:
        body = dead_letters.load_payload(connection, letter.id)
    if body is None:
        return 0
    return int(pc.sum(_mask(selector, letter, unpack_rows(body))).as_py() or 0)


def _mask(selector: PurgeSelector, letter: DeadLetter, rows: pa.Table) -> Any:
    if selector.kind == "source":
        return pa.array([letter.key.source in selector.values] * rows.num_rows, pa.bool_())
    is_installed = letter.key.dataset in datasets.list_names()
    column = selector.column(datasets.get(letter.key.dataset)) if is_installed else None
    if column is None or column == SOURCE or column not in rows.column_names:
        return pa.array([False] * rows.num_rows, pa.bool_())
    return selector.mask_rows(datasets.get(letter.key.dataset), rows)


def _remove_rows(context: PurgeContext, letter: DeadLetter) -> int:
    with context.store.transaction() as connection:
        body = dead_letters.load_payload(connection, letter.id)
        if body is None:
            return 0
        rows = unpack_rows(body)
        kept = rows.filter(pc.invert(_mask(context.selector, letter, rows)))
        if kept.num_rows == rows.num_rows:
            return 0
        if kept.num_rows:
            dead_letters.add_letter(
                connection, replace(letter, rows=kept.num_rows, reason=_PURGED_REASON), pack_rows(kept)
            )
        else:
            dead_letters.drop_letter(connection, letter.id)
            streams.advance_delivery_step(connection)
    mirror.write_mirror(context.home.mirror, context.store)
    _after_letters()
    return int(rows.num_rows - kept.num_rows)


def _remove_quotes(context: PurgeContext, removed_rows: RemovedRows) -> None:
    """Replace errors of streams that quote a purged row."""
    with context.store.reading() as connection:
        quoting_streams = [
            stream.key
            for stream in streams.list_streams(connection)
            if stream.last_error and any(each in stream.last_error for each in removed_rows.ids)
        ]
    if quoting_streams:
        with context.store.transaction() as connection:
            for key in quoting_streams:
                streams.replace_error(connection, key, _PURGED_REASON)


def count_dead_letters(store: StateStore, selector: PurgeSelector) -> tuple[int, int]:
    """Return (dead letters that hold such rows, number of rows)."""
    found = [_count_matching_rows(store, selector, letter) for letter in _letters(store)]
    return sum(rows > 0 for rows in found), sum(found)


def list_copies(store: StateStore, seqs: Mapping[tuple[str, str], array[int]]) -> list[dict[str, Any]]:
    """Return the copies at destinations of the rows with these sequences, by dataset and source.

    Exact only while no delivery of their streams is running.
    """
    with store.reading() as connection:
        copies = [
            _copies_of_stream(connection, stream, seqs[stream.key.dataset, stream.key.source])
            for stream in streams.list_streams(connection)
            if (stream.key.dataset, stream.key.source) in seqs
        ]
    return [each for each in copies if each["rows"] or each["rows_under_way"] or each["unknown"]]


def _copies_of_stream(connection: Connection, stream: Stream, seqs: Iterable[int]) -> dict[str, Any]:
    intent = intents.load_intent(connection, stream.key)
    sent = [(chunk.after, chunk.last) for chunk in intent.chunks if not chunk.unsent] if intent else []
    watermark = stream.watermark or 0
    dead_letter_ranges = [
        (letter.after, letter.last) for letter in dead_letters.list_stream_letters(connection, stream.key)
    ]
    delivered = sum(seq <= watermark for seq in seqs)
    delivered -= sum(_count_within(seqs, after, min(last, watermark)) for after, last in dead_letter_ranges)
    under_way = sum(_count_within(seqs, max(after, watermark), last) for after, last in sent)
    return {
        "sink": stream.key.sink,
        "destination": stream.address,
        "dataset": stream.key.dataset,
        "source": stream.key.source,
        "rows": delivered,
        "rows_under_way": under_way,
        "unknown": stream.watermark is None and stream.history == streams.HISTORY_LOST,
    }


def _count_within(seqs: Iterable[int], after: int, last: int) -> int:
    return sum(after < seq <= last for seq in seqs)
