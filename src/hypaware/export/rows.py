"""The rows to deliver, as the driver reads them.

Tables begin with the sequence (`_hyp_ingest_seq`), followed by the public columns, in sequence order. `Lake` is a
protocol so that delivery can be tested without Spark and Iceberg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Page:
    """All rows of a source in (after, reached]; as many as fit into memory at once."""

    table: pa.Table
    after: int
    reached: int


class Lake(Protocol):
    async def page(self, dataset: str, source: str, after: int, until: int, most: int) -> Page:
        """Return the next rows, at most `most` of them. Advances by at least one sequence and never beyond `until`."""
        ...

    async def between(self, dataset: str, source: str, after: int, last: int) -> pa.Table:
        """Return all rows in (after, last]."""
        ...

    def count(self, dataset: str, source: str, after: int, last: int) -> int:
        """Count the rows in (after, last]."""
        ...
