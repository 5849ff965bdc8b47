"""Rows in the form in which they travel: cut by size into chunks, sent, and sent again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc


class Payload(Protocol):
    @property
    def sizes(self) -> Sequence[int]:
        """Bytes of each row, as `Limits.bytes` counts them."""
        ...

    def part(self, start: int, stop: int) -> Payload: ...


@dataclass(frozen=True)
class Lines:
    """One encoded row each, with its line end."""

    lines: Sequence[bytes]

    @cached_property
    def sizes(self) -> Sequence[int]:
        return [len(line) for line in self.lines]

    def part(self, start: int, stop: int) -> Lines:
        return Lines(self.lines[start:stop])


@dataclass(frozen=True)
class Rows:
    """A table whose encoding covers all its rows at once; sizes are those of its values in memory."""

    table: pa.Table

    @cached_property
    def sizes(self) -> Sequence[int]:
        total = pa.array([0] * len(self.table), pa.int64())
        for column in self.table.columns:
            if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
                lengths = pc.cast(pc.fill_null(pc.binary_length(column), 0), pa.int64())
                total = pc.add(total, lengths.combine_chunks())
            elif column.null_count < len(column):
                total = pc.add(total, 8)
        sizes: list[int] = total.to_pylist()
        return sizes

    def part(self, start: int, stop: int) -> Rows:
        return Rows(self.table.slice(start, stop - start))
