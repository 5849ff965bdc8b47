"""Which rows are meant: those of sessions, of sources, of folders and what lies below them, or before a moment.

One rule in three forms, which must agree: over a coerced row, over columns of a data file, and over what the metadata
says of a file or a row group (`may_hold`), which may only err towards reading it. A row that says no session is meant
if it names one that is (`mention`).
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
    """For `before` one moment, as `timestamp_text` writes it; for `cwd` paths without a slash at the end."""

    @classmethod
    def of(cls, args: Mapping[str, Any]) -> Selector:
        return cls(args["kind"], tuple(dict.fromkeys(args["values"])))

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "values": list(self.values)}

    @property
    def closes(self) -> bool:
        """Whether it closes what will still come, or only keeps the removed rows from coming back."""
        return self.kind in ("session", "before")

    @property
    def stones(self) -> list[Stone]:
        return [Stone(self.kind, value, f"hyp purge --{self.kind} {shlex.quote(value)}") for value in self.values]

    @property
    def each(self) -> list[Selector]:
        """One for each value, in the order of the stones."""
        return [Selector(self.kind, (value,)) for value in self.values]

    def column(self, dataset: Dataset) -> str | None:
        """The one that decides; None where the dataset has no such column, and its rows are left alone."""
        name = {"session": SESSION, "source": SOURCE, "cwd": CWD, "before": dataset.time_column}[self.kind]
        return name if name == SOURCE or name in dataset.coercers else None

    def within(self, dataset: Dataset, sessions: Sequence[str]) -> Selector | None:
        """What it means in one dataset; None: its rows are left alone.

        Rows that say no folder are known by their session: `sessions` are those that worked in the folders.
        """
        if self.column(dataset) is not None:
            return self
        by_session = self.kind == "cwd" and SESSION in dataset.coercers
        return Selector("session", tuple(sessions)) if by_session else None

    def may_be_unsaid(self, dataset: Dataset) -> bool:
        """Whether rows of the dataset need not say what this goes by: the session, or the folder."""
        column = self.column(dataset)
        return self.kind in ("session", "cwd") and column is not None and column not in dataset.required

    def mentioned(self, dataset: Dataset) -> tuple[str, ...]:
        """The ids by which rows that say none are known."""
        return mention.telling(self.values) if self.kind == "session" and self.may_be_unsaid(dataset) else ()

    def matches(self, dataset: Dataset, row: Mapping[str, Any]) -> bool:
        """Of a coerced row."""
        if self.kind == "source":
            return dataset.source_of(row) in self.values
        column = self.column(dataset)
        value = row.get(column) if column else None
        if value is None and (ids := self.mentioned(dataset)):
            return mention.in_row({name: row.get(name) for name in mention.texts_of(dataset)}, ids)
        if not isinstance(value, str):
            return False
        if self.kind == "before":
            return value < self.values[0]
        return value in self.values if self.kind == "session" else any(_lies_in(value, path) for path in self.values)

    def mask_of(self, dataset: Dataset, rows: pa.Table) -> Any:
        """Over rows of Arrow, with the column that decides and with their texts, where those may name it."""
        column = rows.column(self.column(dataset))
        found = self.mask(column)
        ids = self.mentioned(dataset)
        if not ids or not column.null_count:
            return found
        texts = rows.select([name for name in mention.texts_of(dataset) if name in rows.column_names])
        return pc.or_(found, mention.in_rows(texts, pc.is_null(column), ids))

    def mask(self, column: Any) -> Any:
        """Over a column of Arrow; never null."""
        if self.kind == "before":
            found = pc.less(column, pa.scalar(_moment(self.values[0]), column.type))
        elif self.kind == "cwd":
            found = reduce(pc.or_, (_below(column, path) for path in self.values))
        else:
            found = pc.is_in(column, value_set=pa.array(self.values, pa.string()))
        return pc.fill_null(found, False)

    def may_hold(self, file: DataFile) -> bool:
        """By its partition."""
        if self.kind == "source":
            return file.source in self.values
        return self.kind != "before" or file.day is None or file.day <= _day(self.values[0])

    def may_match(self, lowest: Any, highest: Any) -> bool:
        """By what a row group says of its column."""
        if lowest is None or highest is None:
            return True
        if self.kind == "before":
            return not isinstance(lowest, datetime) or lowest.replace(tzinfo=None) < _moment(self.values[0]).replace(
                tzinfo=None
            )
        if not isinstance(lowest, str) or not isinstance(highest, str):
            return True
        # What lies in a folder begins with its name, so it lies between the name and the first that does not.
        return any(lowest <= value + "\U0010ffff" and highest >= value for value in self.values)


@dataclass(frozen=True)
class Chosen:
    """The same as rows that do not go on, for a rewrite."""

    selector: Selector
    dataset: str

    def rows(self, rows: pa.Table) -> Any:
        return self.selector.mask_of(datasets.get(self.dataset), rows)


def left_alone(selector: Selector, kinds: Sequence[Dataset]) -> list[str]:
    """Datasets without a column that decides."""
    return [dataset.name for dataset in kinds if selector.within(dataset, ()) is None]


def _lies_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith((f"{folder}/", f"{folder}\\"))


def _below(column: Any, folder: str) -> Any:
    inside = pc.or_(pc.starts_with(column, f"{folder}/"), pc.starts_with(column, f"{folder}\\"))
    return pc.or_(pc.equal(column, folder), inside)


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _day(text: str) -> date:
    return date.fromisoformat(text[:10])
