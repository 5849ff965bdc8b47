"""Removing purged rows from dead letters; a dead letter without rows is dropped.

A dead letter keeps its chunk and its id; a replay sends the remaining rows. The destination's error message may quote a
row, so it is removed too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import update

from hypaware import faults
from hypaware.export.letters import packed, unpacked
from hypaware.export.locks import stream_lock
from hypaware.maintain.purge.purging import Gone, Purging, Report
from hypaware.maintain.purge.selection import Selector
from hypaware.model import datasets
from hypaware.model.datasets import SOURCE
from hypaware.state import dead_letters, mirror, streams, tables
from hypaware.state.dead_letters import DeadLetter
from hypaware.state.store import Store

_after_letters = faults.point("maintain.purge.after-letters", "a dead letter no longer holds purged rows")
_TIMEOUT = 60.0


_PURGED_REASON = "removed by a purge"


def scrub(context: Purging, report: Report, removed_rows: Gone) -> None:
    """Remove the rows from all dead letters and the messages that quote them."""
    for letter in _letters(context.store):
        if not count(context.store, context.selector, letter):
            continue
        # Not while a replay of the same dead letter runs.
        with stream_lock(context.home, letter.key, _TIMEOUT):
            rows = _remove_rows(context, letter)
        report.letter_rows += rows
        report.letters += rows > 0
    _remove_quotes(context, removed_rows)


def counted(store: Store, selector: Selector) -> tuple[int, int]:
    """Return (dead letters that hold such rows, number of rows)."""
    found = [count(store, selector, letter) for letter in _letters(store)]
    return sum(rows > 0 for rows in found), sum(found)


def count(store: Store, selector: Selector, letter: DeadLetter) -> int:
    """Return the number of matching rows in a dead letter."""
    with store.reading() as connection:
        body = dead_letters.payload(connection, letter.id)
    if body is None:
        return 0
    return int(pc.sum(_mask(selector, letter, unpacked(body))).as_py() or 0)


def _remove_rows(context: Purging, letter: DeadLetter) -> int:
    with context.store.transaction() as connection:
        body = dead_letters.payload(connection, letter.id)
        if body is None:
            return 0
        rows = unpacked(body)
        kept = rows.filter(pc.invert(_mask(context.selector, letter, rows)))
        if kept.num_rows == rows.num_rows:
            return 0
        if kept.num_rows:
            dead_letters.bury(connection, replace(letter, rows=kept.num_rows, reason=_PURGED_REASON), packed(kept))
        else:
            dead_letters.drop(connection, letter.id)
            streams.stepped(connection)
    mirror.write(context.home.mirror, context.store)
    _after_letters()
    return int(rows.num_rows - kept.num_rows)


def _remove_quotes(context: Purging, removed_rows: Gone) -> None:
    """Replace errors of streams that quote a purged row."""
    with context.store.reading() as connection:
        quoting_streams = [
            stream.key
            for stream in streams.all_streams(connection)
            if stream.last_error and any(each in stream.last_error for each in removed_rows.ids)
        ]
    if quoting_streams:
        with context.store.transaction() as connection:
            for key in quoting_streams:
                connection.execute(
                    update(tables.streams).where(streams.of(tables.streams, key)).values(last_error=_PURGED_REASON)
                )


def _mask(selector: Selector, letter: DeadLetter, rows: pa.Table) -> Any:
    if selector.kind == "source":
        return pa.array([letter.key.source in selector.values] * rows.num_rows, pa.bool_())
    is_installed = letter.key.dataset in datasets.names()
    column = selector.column(datasets.get(letter.key.dataset)) if is_installed else None
    if column is None or column == SOURCE or column not in rows.column_names:
        return pa.array([False] * rows.num_rows, pa.bool_())
    return selector.mask_rows(datasets.get(letter.key.dataset), rows)


def _letters(store: Store) -> list[DeadLetter]:
    with store.reading() as connection:
        return dead_letters.all_letters(connection)
