"""Read the rows to deliver from the home's own lake."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hypaware.export.rows import Page
from hypaware.lake import counting, since

if TYPE_CHECKING:
    import pyarrow as pa

    from hypaware.home import Home


class LakeRows:
    """Rows from the home's own lake."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self.scanned = 0
        """Rows read in total, including those that did not match."""

    async def page(self, dataset: str, source: str, after: int, until: int, most: int) -> Page:
        found = await asyncio.to_thread(since.page, self._home, dataset, source, after, until, most)
        self.scanned += found.scanned
        return Page(found.rows, after, found.reached)

    async def between(self, dataset: str, source: str, after: int, last: int) -> pa.Table:
        found = await asyncio.to_thread(since.between, self._home, dataset, source, after, last)
        self.scanned += found.scanned
        return found.rows

    def count(self, dataset: str, source: str, after: int, last: int) -> int:
        return counting.rows_between(self._home, dataset, source, after, last)
