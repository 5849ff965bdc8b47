"""Selection of rows: by session, by source, by folder (including its subfolders), or before a time.

One rule in three forms that must agree: for a coerced row, for columns of a data file, and for the metadata of a file
or row group (`may_be_in`, `may_match`), which may only err towards reading. A row without a session matches if it
mentions a selected one (`mention`).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import reduce
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from hypaware.lake.closed import SESSION
from hypaware.lake.metadata import DataFile
from hypaware.lake.tombstones import Stone
from hypaware.maintain.purge import mention
from hypaware.model import datasets
from hypaware.model.datasets import SOURCE, Dataset

Kind = Literal["session", "source", "cwd", "before"]
CWD = "cwd"


@dataclass(frozen=True)
class Selector:
    kind: Kind
    values: tuple[str, ...]
    """For `before`, one time as `timestamp_text` writes it; for `cwd`, paths without a trailing slash."""

    @classmethod
    def from_args(cls, args: Mapping[str, Any]) -> Selector:
        return cls(args["kind"], tuple(dict.fromkeys(args["values"])))

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "values": list(self.values)}

    @property
    def is_permanent(self) -> bool:
        """Whether matching rows that arrive later are kept out, or only the removed rows."""
        return self.kind in ("session", "before")

    @property
    def tombstones(self) -> list[Stone]:
        return [Stone(self.kind, value, f"hyp purge --{self.kind} {shlex.quote(value)}") for value in self.values]

    @property
    def single_selectors(self) -> list[Selector]:
        """One selector for each value, in the order of the tombstones."""
        return [Selector(self.kind, (value,)) for value in self.values]

    def column(self, dataset: Dataset) -> str | None:
        """Return the deciding column; None if the dataset does not have it and its rows are left alone."""
        name = {"session": SESSION, "source": SOURCE, "cwd": CWD, "before": dataset.time_column}[self.kind]
        return name if name == SOURCE or name in dataset.coercers else None

    def for_dataset(self, dataset: Dataset, sessions: Sequence[str]) -> Selector | None:
        """Return the selector for one dataset; None if its rows are left alone.

        Rows without a folder are selected by session: `sessions` are those that worked in the folders.
        """
        if self.column(dataset) is not None:
            return self
        by_session = self.kind == "cwd" and SESSION in dataset.coercers
        return Selector("session", tuple(sessions)) if by_session else None

    def may_be_unattributed(self, dataset: Dataset) -> bool:
        """Return whether rows of the dataset may lack the deciding session or folder."""
        column = self.column(dataset)
        return self.kind in ("session", "cwd") and column is not None and column not in dataset.required

    def mention_ids(self, dataset: Dataset) -> tuple[str, ...]:
        """Return the ids to search for in the texts of rows without a session."""
        return mention.telling(self.values) if self.kind == "session" and self.may_be_unattributed(dataset) else ()

    def matches(self, dataset: Dataset, row: Mapping[str, Any]) -> bool:
        """Return whether a coerced row matches."""
        if self.kind == "source":
            return dataset.source_of(row) in self.values
        column = self.column(dataset)
        value = row.get(column) if column else None
        if value is None and (ids := self.mention_ids(dataset)):
            return mention.in_row({name: row.get(name) for name in mention.texts_of(dataset)}, ids)
        if not isinstance(value, str):
            return False
        if self.kind == "before":
            return value < self.values[0]
        return value in self.values if self.kind == "session" else any(_is_inside(value, path) for path in self.values)

    def mask_rows(self, dataset: Dataset, rows: pa.Table) -> Any:
        """Mask Arrow rows that have the deciding column, and their text columns if those may mention an id."""
        column = rows.column(self.column(dataset))
        mask = self.mask(column)
        ids = self.mention_ids(dataset)
        if not ids or not column.null_count:
            return mask
        texts = rows.select([name for name in mention.texts_of(dataset) if name in rows.column_names])
        return pc.or_(mask, mention.in_rows(texts, pc.is_null(column), ids))

    def mask(self, column: Any) -> Any:
        """Mask an Arrow column; the result has no nulls."""
        if self.kind == "before":
            mask = pc.less(column, pa.scalar(_parse_time(self.values[0]), column.type))
        elif self.kind == "cwd":
            mask = reduce(pc.or_, (_mask_inside(column, path) for path in self.values))
        else:
            mask = pc.is_in(column, value_set=pa.array(self.values, pa.string()))
        return pc.fill_null(mask, False)

    def may_be_in(self, file: DataFile) -> bool:
        """Return whether the file's partition may hold a matching row."""
        if self.kind == "source":
            return file.source in self.values
        return self.kind != "before" or file.day is None or file.day <= _parse_day(self.values[0])

    def may_match(self, lowest: Any, highest: Any) -> bool:
        """Return whether a row group with these bounds of the column may hold a matching row."""
        if lowest is None or highest is None:
            return True
        if self.kind == "before":
            return not isinstance(lowest, datetime) or lowest.replace(tzinfo=None) < _parse_time(
                self.values[0]
            ).replace(tzinfo=None)
        if not isinstance(lowest, str) or not isinstance(highest, str):
            return True
        # Paths in a folder start with its name, so they sort between the name and the first string that does not.
        return any(lowest <= value + "\U0010ffff" and highest >= value for value in self.values)


@dataclass(frozen=True)
class Chosen:
    """The selector as the rows that a rewrite leaves out."""

    selector: Selector
    dataset: str

    def select(self, rows: pa.Table) -> Any:
        return self.selector.mask_rows(datasets.get(self.dataset), rows)


def left_alone(selector: Selector, all_datasets: Sequence[Dataset]) -> list[str]:
    """Return the datasets without the deciding column."""
    return [dataset.name for dataset in all_datasets if selector.for_dataset(dataset, ()) is None]


def _is_inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith((f"{folder}/", f"{folder}\\"))


def _mask_inside(column: Any, folder: str) -> Any:
    inside = pc.or_(pc.starts_with(column, f"{folder}/"), pc.starts_with(column, f"{folder}\\"))
    return pc.or_(pc.equal(column, folder), inside)


def _parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _parse_day(text: str) -> date:
    return date.fromisoformat(text[:10])
