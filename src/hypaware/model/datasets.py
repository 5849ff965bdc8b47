"""Datasets: what they are made of, and the registry that holds them.

A dataset says which columns its rows have, which one carries its time, how a row's source (its logical partition)
and its dedupe key are found, and which columns follow from others. Built-in datasets and those of plugins register
alike, by an entry point in the group `hypaware.datasets`.
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

# Internal columns of every table: stored, never shown to readers, never shipped.
SEQ = "_hyp_ingest_seq"
SOURCE = "_hyp_source"
ROW_ID = "_hyp_cache_row_id"
BATCH_ID = "_hyp_cache_batch_id"
INTERNAL = (SEQ, SOURCE, ROW_ID, BATCH_ID)

# Says which installation recorded a row, in the datasets that have such a column.
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
    """The source of a row is the first of these that is not empty."""
    key_column: str
    key_parts: tuple[str, ...] = ()
    """What the key is made of (joined by #) in rows that were written before the key column existed."""
    derive: Derive = field(default=_derives_nothing, compare=False)
    """(row, gateway id) -> columns that follow from the others: filled where absent, checked where present."""
    retention_days: int | None = None
    """Kept for so long unless the config says otherwise; None leaves it to `retention.default_days`."""
    settling: Settling | None = field(default=None, compare=False)
    """How two records of one thing meet, where rows can come before their own id is known."""

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        problems = [name for name in names if not _NAME.fullmatch(name) or names.count(name) > 1]
        if not _NAME.fullmatch(self.name) or problems:
            raise ValueError(f"dataset {self.name!r}: bad or repeated names {problems}")
        known = set(names)
        for used in (self.time_column, self.key_column, *self.source_columns, *self.key_parts):
            if used not in known:
                raise ValueError(f"dataset {self.name}: {used} is not one of its columns")
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
        """The dedupe key of a row; a row without one is never dropped."""
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
