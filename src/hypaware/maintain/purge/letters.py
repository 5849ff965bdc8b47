"""Dead letters hold rows of their own: those that are meant are taken out, and a letter with none left is dropped.

The letter stays the same chunk under the same id; a replay sends what is left of it. What a destination said of a row
may quote it, so such words go with the rows.
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

_after_letters = faults.point("maintain.purge.after-letters", "a dead letter holds none of the rows any more")
_PATIENCE = 60.0


_WORDS_GONE = "what was said of it was purged"


def scrub(purging: Purging, report: Report, gone: Gone) -> None:
    for letter in _letters(purging.store):
        if not count(purging.store, purging.selector, letter):
            continue
        # Not beside a replay of the same one.
        with stream_lock(purging.home, letter.key, _PATIENCE):
            rows = _scrub_one(purging, letter)
        report.letter_rows += rows
        report.letters += rows > 0
    _forget_words(purging, gone)


def counted(store: Store, selector: Selector) -> tuple[int, int]:
    """(letters that hold such rows, how many rows)."""
    found = [count(store, selector, letter) for letter in _letters(store)]
    return sum(rows > 0 for rows in found), sum(found)


def count(store: Store, selector: Selector, letter: DeadLetter) -> int:
    with store.reading() as connection:
        body = dead_letters.payload(connection, letter.id)
    if body is None:
        return 0
    return int(pc.sum(_meant(selector, letter, unpacked(body))).as_py() or 0)


def _scrub_one(purging: Purging, letter: DeadLetter) -> int:
    with purging.store.transaction() as connection:
        body = dead_letters.payload(connection, letter.id)
        if body is None:
            return 0
        rows = unpacked(body)
        left = rows.filter(pc.invert(_meant(purging.selector, letter, rows)))
        if left.num_rows == rows.num_rows:
            return 0
        if left.num_rows:
            dead_letters.bury(connection, replace(letter, rows=left.num_rows, reason=_WORDS_GONE), packed(left))
        else:
            dead_letters.drop(connection, letter.id)
            streams.stepped(connection)
    mirror.write(purging.home.mirror, purging.store)
    _after_letters()
    return int(rows.num_rows - left.num_rows)


def _forget_words(purging: Purging, gone: Gone) -> None:
    """Errors of streams that quote a purged row."""
    with purging.store.reading() as connection:
        quoting = [
            stream.key
            for stream in streams.all_streams(connection)
            if stream.last_error and any(each in stream.last_error for each in gone.ids)
        ]
    if quoting:
        with purging.store.transaction() as connection:
            for key in quoting:
                connection.execute(
                    update(tables.streams).where(streams.of(tables.streams, key)).values(last_error=_WORDS_GONE)
                )


def _meant(selector: Selector, letter: DeadLetter, rows: pa.Table) -> Any:
    if selector.kind == "source":
        return pa.array([letter.key.source in selector.values] * rows.num_rows, pa.bool_())
    known = letter.key.dataset in datasets.names()
    column = selector.column(datasets.get(letter.key.dataset)) if known else None
    if column is None or column == SOURCE or column not in rows.column_names:
        return pa.array([False] * rows.num_rows, pa.bool_())
    return selector.mask_of(datasets.get(letter.key.dataset), rows)


def _letters(store: Store) -> list[DeadLetter]:
    with store.reading() as connection:
        return dead_letters.all_letters(connection)
