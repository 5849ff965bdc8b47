"""Rows that say no session, of a dataset whose rows may do so: raw exchanges that nobody here could read.

Such a row belongs to a session if one of its texts names it: a session's id is long enough to be known anywhere. What
neither says nor names one is left alone and counted, because nobody can tell whose it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hypaware.model.columns import Type
from hypaware.model.datasets import Dataset

# A shorter id stands in a body by chance.
_TELLING_CHARACTERS = 8
_OF_A_WORD = "-_"


def telling(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(each for each in ids if len(each) >= _TELLING_CHARACTERS)


def texts_of(dataset: Dataset) -> list[str]:
    return [column.name for column in dataset.columns if column.type in (Type.STRING, Type.JSON)]


def in_row(row: Mapping[str, Any], ids: Sequence[str]) -> bool:
    """Whether any text of it names one of them."""
    return any(_names(value, each) for value in row.values() if isinstance(value, str) for each in ids)


def in_rows(rows: pa.Table, unknown: Any, ids: Sequence[str]) -> Any:
    """The same of those rows of a table that are `unknown`; false for all others."""
    places = pc.indices_nonzero(unknown)
    found = {
        place for place, row in zip(places.to_pylist(), rows.take(places).to_pylist(), strict=True) if in_row(row, ids)
    }
    return pa.array([place in found for place in range(rows.num_rows)], pa.bool_())


def _names(text: str, word: str) -> bool:
    """As a whole word: `session-5` is not named by `session-57`."""
    place = text.find(word)
    while place >= 0:
        around = text[max(0, place - 1) : place] + text[place + len(word) : place + len(word) + 1]
        if not any(each.isalnum() or each in _OF_A_WORD for each in around):
            return True
        place = text.find(word, place + 1)
    return False
