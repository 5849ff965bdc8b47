"""From whatever a producer sends to a row that the lake can hold, or a reason why not.

A coerced row holds only columns of its dataset that are not null, in the plain form of `columns`. It is what the
spool stores, what the row id is computed over, and what flush coerces once more before anything is committed.
"""

from __future__ import annotations

import difflib
from typing import Any

from hypaware.model.columns import shown
from hypaware.model.datasets import INTERNAL, Dataset, Row


class RowRejected(ValueError):
    """Why a row cannot be stored, in words for the one who sent it."""


def coerce_row(dataset: Dataset, raw: Any, gateway_id: str) -> Row:
    if not isinstance(raw, dict):
        raise RowRejected(f"a row is a JSON object, this is {_kind(raw)}")
    coercers, text_columns = dataset.coercers, dataset.text_columns
    row: Row = {}
    for name, value in raw.items():
        # Most of a row is plain text that needs no look at its letters; everything else is judged one by one.
        if type(value) is str and value.isascii() and name in text_columns:
            row[name] = value
            continue
        if value is None and name in coercers:
            continue
        try:
            row[name] = coercers[name](value)
        except KeyError:
            raise RowRejected(_unknown_column(dataset, name)) from None
        except ValueError as reason:
            raise RowRejected(f"column {name}: {reason}") from None
        except RecursionError:
            raise RowRejected(f"column {name}: nested too deeply") from None
    return _completed(dataset, row, gateway_id)


def complete_row(dataset: Dataset, row: Row, gateway_id: str) -> Row:
    """The same for a row that was made as it is stored: nothing is judged again. Takes the row over.

    A test holds it against `coerce_row` for everything that our own expansion makes.
    """
    return _completed(dataset, row, gateway_id)


def _completed(dataset: Dataset, row: Row, gateway_id: str) -> Row:
    for name, value in dataset.derive(row, gateway_id).items():
        if row.setdefault(name, value) != value:
            raise RowRejected(
                f"column {name}: {shown(row[name])} disagrees with {shown(value)}, which follows from the rest"
            )
    for name in dataset.required:
        if name not in row:
            raise RowRejected(f"column {name} is required")
    return row


def _unknown_column(dataset: Dataset, name: object) -> str:
    if name in INTERNAL:
        return f"column {name} is set by the lake, leave it out"
    near = difflib.get_close_matches(str(name)[:100], dataset.coercers, n=1)
    return f"unknown column {shown(name)}" + (f"; did you mean {near[0]}?" if near else "")


def _kind(value: Any) -> str:
    names = {list: "an array", str: "text", bool: "a boolean", int: "a number", float: "a number", type(None): "null"}
    return names.get(type(value), type(value).__name__)
