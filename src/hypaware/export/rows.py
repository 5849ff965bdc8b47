"""Where the rows to deliver come from: a seam, so that delivery can be proved over any lake.

Tables hold the sequence (`_hyp_ingest_seq`) first, then the public columns, in the order of the sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Page:
    """All rows in (after, reached] of a stream's source; as many as fit into memory at once."""

    table: pa.Table
    after: int
    reached: int


class Lake(Protocol):
    async def page(self, dataset: str, source: str, after: int, until: int, most: int) -> Page:
        """The next rows, `most` of them or fewer, at least one sequence further; never beyond `until`."""
        ...

    async def between(self, dataset: str, source: str, after: int, last: int) -> pa.Table:
        """All rows in (after, last]."""
        ...

    def count(self, dataset: str, source: str, after: int, last: int) -> int:
        """How many rows lie in (after, last]."""
        ...
