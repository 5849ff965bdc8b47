"""Rows without a session, in datasets where that is allowed: raw exchanges in an unknown dialect.

Such a row belongs to a session if one of its texts mentions the session's id, which is long enough to be unique. A row
that mentions none is left alone and counted, because it cannot be attributed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hypaware.model.columns import Type
from hypaware.model.datasets import Dataset

# A shorter id may occur in a body by chance.
_MIN_CHARACTERS = 8
_WORD_CHARACTERS = "-_"


def telling(ids: Iterable[str]) -> tuple[str, ...]:
    """Return the ids that are long enough to be searched for in texts."""
    return tuple(each for each in ids if len(each) >= _MIN_CHARACTERS)


def texts_of(dataset: Dataset) -> list[str]:
    """Return the text columns of the dataset."""
    return [column.name for column in dataset.columns if column.type in (Type.STRING, Type.JSON)]


def in_row(row: Mapping[str, Any], ids: Sequence[str]) -> bool:
    """Return whether any text of the row mentions one of the ids."""
    return any(_mentions(value, each) for value in row.values() if isinstance(value, str) for each in ids)


def in_rows(rows: pa.Table, unknown: Any, ids: Sequence[str]) -> Any:
    """Mask the rows of a table that are `unknown` and mention one of the ids."""
    positions = pc.indices_nonzero(unknown)
    found = {
        position
        for position, row in zip(positions.to_pylist(), rows.take(positions).to_pylist(), strict=True)
        if in_row(row, ids)
    }
    return pa.array([position in found for position in range(rows.num_rows)], pa.bool_())


def _mentions(text: str, word: str) -> bool:
    """Search for a whole word: `session-57` does not mention `session-5`."""
    position = text.find(word)
    while position >= 0:
        around = text[max(0, position - 1) : position] + text[position + len(word) : position + len(word) + 1]
        if not any(each.isalnum() or each in _WORD_CHARACTERS for each in around):
            return True
        position = text.find(word, position + 1)
    return False
