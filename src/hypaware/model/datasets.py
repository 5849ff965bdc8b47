"""Datasets, their registry, and the coercion of rows.

A dataset defines its columns, its time column, how a row's source (its logical partition) and dedupe key are found,
and which columns are derived from others. Built-in datasets and those of plugins register in the same way, by an
entry point in the group `hypaware.datasets`.

The lake and the key index identify a row by the hash of its dedupe key.

A coerced row holds only non-null columns of its dataset, in the plain form that `columns` defines. The spool stores
it, the row id is computed from it, and a flush coerces it again before it commits anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from hashlib import sha256
from typing import Any

from hypaware.errors import HypError
from hypaware.home.identity import is_own_gateway
from hypaware.model.columns import Column, ColumnType, get_coercer, preview
from hypaware.model.match_keys import MatchRules
from hypaware.text import did_you_mean

# Internal columns of every table: stored, never shown to readers, never delivered.
SEQ = "_hyp_ingest_seq"
SOURCE = "_hyp_source"
ROW_ID = "_hyp_cache_row_id"
BATCH_ID = "_hyp_cache_batch_id"
INTERNAL = (SEQ, SOURCE, ROW_ID, BATCH_ID)
# The column that names the installation that recorded a row, in datasets that have one.
GATEWAY = "gateway_id"
UNKNOWN_SOURCE = "unknown"
KEY_BYTES = 16
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_TYPE_NAMES = {list: "an array", str: "text", bool: "a boolean", int: "a number", float: "a number", type(None): "null"}
Row = dict[str, Any]
Derive = Callable[[Row, str], Mapping[str, Any]]


@dataclass(frozen=True)
class Dataset:
    name: str
    about: str
    columns: tuple[Column, ...]
    time_column: str
    source_columns: tuple[str, ...]
    """A row's source is the first of these columns that is not empty."""
    key_column: str
    key_parts: tuple[str, ...] = ()
    """The columns that form the key (joined by #) in rows written before the key column existed."""
    derive: Derive = field(default=lambda _row, _gateway_id: {}, compare=False)
    """(row, gateway id) -> derived columns, which are filled in if absent and checked if present. Must not read JSON
    columns: the row has them as text or as values."""
    retention_days: int | None = None
    """The retention unless the config sets one; None means `retention.default_days`."""
    match_rules: MatchRules | None = field(default=None, compare=False)
    """How live rows are matched with native rows, in datasets that have both."""

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        problems = [name for name in names if not _NAME.fullmatch(name) or names.count(name) > 1]
        if not _NAME.fullmatch(self.name) or problems:
            raise ValueError(f"dataset {self.name!r}: invalid or duplicate names {problems}")
        for name in (self.time_column, self.key_column, *self.source_columns, *self.key_parts):
            if name not in names:
                raise ValueError(f"dataset {self.name}: {name} is not one of its columns")
        if self.column(self.time_column).type is not ColumnType.TIMESTAMP:
            raise ValueError(f"dataset {self.name}: the time column {self.time_column} is not a TIMESTAMP")

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    @cached_property
    def coercers(self) -> dict[str, Callable[[Any], Any]]:
        return {column.name: get_coercer(column.type) for column in self.columns}

    @cached_property
    def text_columns(self) -> frozenset[str]:
        return frozenset(column.name for column in self.columns if column.type is ColumnType.STRING)

    @cached_property
    def required(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns if column.required)

    def source_of(self, row: Mapping[str, Any]) -> str:
        return next((value for name in self.source_columns if (value := row.get(name))), UNKNOWN_SOURCE)

    def key_of(self, row: Mapping[str, Any]) -> str | None:
        """Return the dedupe key of a row, or None. A row without a key is never dropped as a duplicate."""
        if key := row.get(self.key_column):
            return str(key)
        parts = [row.get(name) for name in self.key_parts]
        return "#".join(map(str, parts)) if parts and None not in parts else None


@cache
def _load_registry() -> dict[str, Dataset]:
    from hypaware import plugins

    return {found.name: found for found in plugins.load_plugins("hypaware.datasets", Dataset)}


def list_all() -> tuple[Dataset, ...]:
    return tuple(sorted(_load_registry().values(), key=lambda dataset: dataset.name))


def list_names() -> tuple[str, ...]:
    return tuple(dataset.name for dataset in list_all())


def get(name: str) -> Dataset:
    try:
        return _load_registry()[name]
    except KeyError:
        hint = did_you_mean(name, list_names(), and_all=True)
        raise HypError(f"unknown dataset {name!r}.{hint}", kind="unknown_dataset") from None


def hash_row_key(dataset: Dataset, row: Mapping[str, Any], own_gateway: str | None) -> bytes | None:
    """Hash a row's dedupe key. Return None for a row without one, which is never dropped.

    The hash includes the id of another gateway, so that no gateway can claim or hide another's rows.
    """
    if (key := dataset.key_of(row)) is None:
        return None
    gateway = row.get(GATEWAY)
    is_own = own_gateway is None or gateway == own_gateway or is_own_gateway(gateway, own_gateway)
    return hash_key(dataset.name, key, None if is_own else gateway)


def is_own_row(row: Mapping[str, Any], own_gateway: str | None) -> bool:
    """Return whether the row was recorded by this home, or by another machine that shares its lake."""
    return own_gateway is None or is_own_gateway(row.get(GATEWAY), own_gateway)


def hash_key(dataset: str, key: str, gateway: str | None = None) -> bytes:
    """Hash a dedupe key to half a sha256, which Spark SQL can compute over the lake's rows too."""
    # No dataset name contains an @, and the length marks the end of the gateway id.
    scope = dataset if gateway is None else f"{dataset}@{len(gateway)}:{gateway}"
    return sha256(f"{scope}:{key}".encode()).digest()[:KEY_BYTES]


class RowRejected(ValueError):
    """A row cannot be stored; the message tells its sender why."""


def coerce_row(dataset: Dataset, raw: Any, gateway_id: str) -> Row:
    if not isinstance(raw, dict):
        raise RowRejected(f"a row must be a JSON object, not {_TYPE_NAMES.get(type(raw), type(raw).__name__)}")
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
            raise RowRejected(_explain_unknown_column(dataset, name)) from None
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
                f"column {name}: {preview(row[name])} contradicts the other columns, which give {preview(value)}"
            )
    for name in dataset.required:
        if name not in row:
            raise RowRejected(f"column {name} is required")
    return row


def _explain_unknown_column(dataset: Dataset, name: object) -> str:
    if name in INTERNAL:
        return f"column {name} is set by the lake; leave it out"
    hint = did_you_mean(str(name)[:100], list(dataset.coercers), or_all=False)
    return f"unknown column {preview(name)}" + (f".{hint}" if hint else "")
