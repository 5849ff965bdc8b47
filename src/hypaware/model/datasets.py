"""Datasets and their registry.

A dataset defines its columns, its time column, how a row's source (its logical partition) and dedupe key are found,
and which columns are derived from others. Built-in datasets and those of plugins register in the same way, by an
entry point in the group `hypaware.datasets`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from hypaware.errors import HypError
from hypaware.model.columns import Column, Type, coercer
from hypaware.model.settling import Settling

# Internal columns of every table: stored, never shown to readers, never delivered.
SEQ = "_hyp_ingest_seq"
SOURCE = "_hyp_source"
ROW_ID = "_hyp_cache_row_id"
BATCH_ID = "_hyp_cache_batch_id"
INTERNAL = (SEQ, SOURCE, ROW_ID, BATCH_ID)

# The column that names the installation that recorded a row, in datasets that have one.
GATEWAY = "gateway_id"
UNKNOWN_SOURCE = "unknown"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")

Row = dict[str, Any]
Derive = Callable[[Row, str], Mapping[str, Any]]


def _derives_nothing(_row: Row, _gateway_id: str) -> Mapping[str, Any]:
    return {}


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
    derive: Derive = field(default=_derives_nothing, compare=False)
    """(row, gateway id) -> derived columns, which are filled in if absent and checked if present."""
    retention_days: int | None = None
    """The retention unless the config sets one; None means `retention.default_days`."""
    match_rules: Settling | None = field(default=None, compare=False)
    """How live rows are matched with native rows, in datasets that have both."""

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        problems = [name for name in names if not _NAME.fullmatch(name) or names.count(name) > 1]
        if not _NAME.fullmatch(self.name) or problems:
            raise ValueError(f"dataset {self.name!r}: invalid or duplicate names {problems}")
        known = set(names)
        for name in (self.time_column, self.key_column, *self.source_columns, *self.key_parts):
            if name not in known:
                raise ValueError(f"dataset {self.name}: {name} is not one of its columns")
        if self.column(self.time_column).type is not Type.TIMESTAMP:
            raise ValueError(f"dataset {self.name}: the time column {self.time_column} is not a TIMESTAMP")

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    @cached_property
    def coercers(self) -> dict[str, Callable[[Any], Any]]:
        return {column.name: coercer(column.type) for column in self.columns}

    @cached_property
    def text_columns(self) -> frozenset[str]:
        return frozenset(column.name for column in self.columns if column.type is Type.STRING)

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
def _registered() -> dict[str, Dataset]:
    from hypaware import plugins

    return {found.name: found for found in plugins.load("hypaware.datasets", Dataset)}


def all() -> tuple[Dataset, ...]:
    return tuple(sorted(_registered().values(), key=lambda dataset: dataset.name))


def names() -> tuple[str, ...]:
    return tuple(dataset.name for dataset in all())


def get(name: str) -> Dataset:
    try:
        return _registered()[name]
    except KeyError:
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise HypError(
            f"there is no dataset {name!r}{hint}; there are: {', '.join(names())}", kind="unknown_dataset"
        ) from None
