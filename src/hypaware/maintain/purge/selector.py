"""Selection of rows: by session, by source, by folder (including its subfolders), or before a time.

One rule in three forms that must agree: for a coerced row, for columns of a data file, and for the metadata of a file
or row group (`may_be_in`, `may_match`), which may only err towards reading.

Raw exchanges in an unknown dialect have no session. Such a row belongs to a session if one of its texts mentions the
session's id, which is long enough to be unique. A row that mentions none is left alone and counted, because it cannot
be attributed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import reduce
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from hypaware.iceberg.metadata import DataFile
from hypaware.lake.tombstones import SESSION_COLUMN, Tombstone
from hypaware.model import datasets
from hypaware.model.columns import ColumnType
from hypaware.model.datasets import SOURCE, Dataset

# A shorter id may occur in a body by chance.
_MIN_CHARACTERS = 8
SelectorKind = Literal["session", "source", "cwd", "before"]
CWD = "cwd"


@dataclass(frozen=True)
class PurgeSelector:
    kind: SelectorKind
    values: tuple[str, ...]
    """For `before`, one time as `timestamp_text` writes it; for `cwd`, paths without a trailing slash."""

    @classmethod
    def from_args(cls, args: Mapping[str, Any]) -> PurgeSelector:
        return cls(args["kind"], tuple(dict.fromkeys(args["values"])))

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "values": list(self.values)}

    @property
    def is_permanent(self) -> bool:
        """Whether matching rows that arrive later are kept out, or only the removed rows."""
        return self.kind in ("session", "before")

    @property
    def tombstones(self) -> list[Tombstone]:
        return [Tombstone(self.kind, value, f"hyp purge --{self.kind} {shlex.quote(value)}") for value in self.values]

    @property
    def single_selectors(self) -> list[PurgeSelector]:
        """One selector for each value, in the order of the tombstones."""
        return [PurgeSelector(self.kind, (value,)) for value in self.values]

    def column(self, dataset: Dataset) -> str | None:
        """Return the deciding column; None if the dataset does not have it and its rows are left alone."""
        name = {"session": SESSION_COLUMN, "source": SOURCE, "cwd": CWD, "before": dataset.time_column}[self.kind]
        return name if name == SOURCE or name in dataset.coercers else None

    def for_dataset(self, dataset: Dataset, sessions: Sequence[str]) -> PurgeSelector | None:
        """Return the selector for one dataset; None if its rows are left alone.

        Rows without a folder are selected by session: `sessions` are those that worked in the folders.
        """
        if self.column(dataset) is not None:
            return self
        by_session = self.kind == "cwd" and SESSION_COLUMN in dataset.coercers
        return PurgeSelector("session", tuple(sessions)) if by_session else None

    def may_be_unattributed(self, dataset: Dataset) -> bool:
        """Return whether rows of the dataset may lack the deciding session or folder."""
        column = self.column(dataset)
        return self.kind in ("session", "cwd") and column is not None and column not in dataset.required

    def mention_ids(self, dataset: Dataset) -> tuple[str, ...]:
        """Return the ids to search for in the texts of rows without a session."""
        if self.kind != "session" or not self.may_be_unattributed(dataset):
            return ()
        return tuple(each for each in self.values if len(each) >= _MIN_CHARACTERS)

    def matches(self, dataset: Dataset, row: Mapping[str, Any]) -> bool:
        """Return whether a coerced row matches."""
        if self.kind == "source":
            return dataset.source_of(row) in self.values
        column = self.column(dataset)
        value = row.get(column) if column else None
        if value is None and (ids := self.mention_ids(dataset)):
            return _row_mentions({name: row.get(name) for name in text_columns(dataset)}, ids)
        if not isinstance(value, str):
            return False
        if self.kind == "before":
            return value < self.values[0]
        if self.kind == "session":
            return value in self.values
        return any(value == path or value.startswith((f"{path}/", f"{path}\\")) for path in self.values)

    def mask_rows(self, dataset: Dataset, rows: pa.Table) -> Any:
        """Mask Arrow rows that have the deciding column, and their text columns if those may mention an id."""
        column = rows.column(self.column(dataset))
        mask = self.mask(column)
        ids = self.mention_ids(dataset)
        if not ids or not column.null_count:
            return mask
        texts = rows.select([name for name in text_columns(dataset) if name in rows.column_names])
        unattributed = pc.indices_nonzero(pc.is_null(column))
        found = {
            position
            for position, row in zip(unattributed.to_pylist(), texts.take(unattributed).to_pylist(), strict=True)
            if _row_mentions(row, ids)
        }
        return pc.or_(mask, pa.array([position in found for position in range(rows.num_rows)], pa.bool_()))

    def mask(self, column: Any) -> Any:
        """Mask an Arrow column; the result has no nulls."""
        if self.kind == "before":
            mask = pc.less(column, pa.scalar(datetime.fromisoformat(self.values[0]), column.type))
        elif self.kind == "cwd":
            inside = [pc.starts_with(column, path + separator) for path in self.values for separator in "/\\"]
            mask = reduce(pc.or_, inside, pc.is_in(column, value_set=pa.array(self.values, pa.string())))
        else:
            mask = pc.is_in(column, value_set=pa.array(self.values, pa.string()))
        return pc.fill_null(mask, False)

    def may_be_in(self, file: DataFile) -> bool:
        """Return whether the file's partition may hold a matching row."""
        if self.kind == "source":
            return file.source in self.values
        return self.kind != "before" or file.day is None or file.day <= date.fromisoformat(self.values[0][:10])

    def may_match(self, lowest: Any, highest: Any) -> bool:
        """Return whether a row group with these bounds of the column may hold a matching row."""
        if lowest is None or highest is None:
            return True
        if self.kind == "before":
            before = datetime.fromisoformat(self.values[0]).replace(tzinfo=None)
            return not isinstance(lowest, datetime) or lowest.replace(tzinfo=None) < before
        if not isinstance(lowest, str) or not isinstance(highest, str):
            return True
        # Paths in a folder start with its name, so they sort between the name and the first string that does not.
        return any(lowest <= value + "\U0010ffff" and highest >= value for value in self.values)


def text_columns(dataset: Dataset) -> list[str]:
    return [column.name for column in dataset.columns if column.type in (ColumnType.STRING, ColumnType.JSON)]


def _row_mentions(row: Mapping[str, Any], ids: Sequence[str]) -> bool:
    """Return whether any text of the row mentions one of the ids as a whole word: `session-57` is not `session-5`."""
    return any(
        word in text and re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text)
        for text in row.values()
        if isinstance(text, str)
        for word in ids
    )


@dataclass(frozen=True)
class RowPredicate:
    """The selector as the rows that a rewrite leaves out."""

    selector: PurgeSelector
    dataset: str

    def select(self, rows: pa.Table) -> Any:
        return self.selector.mask_rows(datasets.get(self.dataset), rows)


def unaffected_datasets(selector: PurgeSelector, all_datasets: Sequence[Dataset]) -> list[str]:
    """Return the datasets without the deciding column."""
    return [dataset.name for dataset in all_datasets if selector.for_dataset(dataset, ()) is None]
