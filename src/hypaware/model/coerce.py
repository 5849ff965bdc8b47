"""Coerce a producer's row into a row that the lake can store, or reject it with a reason.

A coerced row holds only non-null columns of its dataset, in the plain form that `columns` defines. The spool stores
it, the row id is computed from it, and a flush coerces it again before it commits anything.
"""

from __future__ import annotations

import difflib
from typing import Any

from hypaware.model.columns import shown
from hypaware.model.datasets import INTERNAL, Dataset, Row


class RowRejected(ValueError):
    """A row cannot be stored; the message tells its sender why."""


def coerce_row(dataset: Dataset, raw: Any, gateway_id: str) -> Row:
    if not isinstance(raw, dict):
        raise RowRejected(f"a row must be a JSON object, not {_kind(raw)}")
    coercers, text_columns = dataset.coercers, dataset.text_columns
    row: Row = {}
    for name, value in raw.items():
        # Fast path: most values are ASCII text, which needs no check.
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
    return complete_row(dataset, row, gateway_id)


def complete_row(dataset: Dataset, row: Row, gateway_id: str) -> Row:
    """Add the derived columns to a row whose values are already coerced, and check the required ones.

    Changes and returns the row itself. A test compares the result with `coerce_row` for every row that `expand` makes.
    """
    for name, value in dataset.derive(row, gateway_id).items():
        if row.setdefault(name, value) != value:
            raise RowRejected(
                f"column {name}: {shown(row[name])} contradicts the other columns, which give {shown(value)}"
            )
    for name in dataset.required:
        if name not in row:
            raise RowRejected(f"column {name} is required")
    return row


def _unknown_column(dataset: Dataset, name: object) -> str:
    if name in INTERNAL:
        return f"column {name} is set by the lake; leave it out"
    near = difflib.get_close_matches(str(name)[:100], dataset.coercers, n=1)
    return f"unknown column {shown(name)}" + (f"; did you mean {near[0]}?" if near else "")


def _kind(value: Any) -> str:
    names = {list: "an array", str: "text", bool: "a boolean", int: "a number", float: "a number", type(None): "null"}
    return names.get(type(value), type(value).__name__)
