"""Encoded rows. The driver cuts them into chunks by size and can send them more than once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa


class Payload(Protocol):
    @property
    def sizes(self) -> Sequence[int]:
        """Bytes of each row, as `Limits.bytes` counts them."""
        ...

    def slice(self, start: int, stop: int) -> Payload: ...


@dataclass(frozen=True)
class Lines:
    """One encoded row per line, line end included."""

    lines: Sequence[bytes]

    @cached_property
    def sizes(self) -> Sequence[int]:
        return [len(line) for line in self.lines]

    def slice(self, start: int, stop: int) -> Lines:
        return Lines(self.lines[start:stop])


@dataclass(frozen=True)
class Rows:
    """A table that is encoded as a whole. Sizes are those of its values in memory."""

    table: pa.Table

    @cached_property
    def sizes(self) -> Sequence[int]:
        # Imported here: commands that only look at the configured sinks must not load Arrow.
        import pyarrow as pa
        import pyarrow.compute as pc

        total = pa.array([0] * len(self.table), pa.int64())
        for column in self.table.columns:
            if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
                lengths = pc.cast(pc.fill_null(pc.binary_length(column), 0), pa.int64())
                total = pc.add(total, lengths.combine_chunks())
            elif column.null_count < len(column):
                total = pc.add(total, 8)
        sizes: list[int] = total.to_pylist()
        return sizes

    def slice(self, start: int, stop: int) -> Rows:
        return Rows(self.table.slice(start, stop - start))
