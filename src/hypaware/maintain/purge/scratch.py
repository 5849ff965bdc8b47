"""Files that queries leave in the engine's scratch directory until Spark removes them: shuffled rows and spilled
results.

A query that started before the purge may have purged rows there. Wait for such queries for a limited time, then remove
the files that no running job can have written.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from hypaware.lake import turns
from hypaware.maintain.purge.purging import Purging

_LEFT_BY_QUERIES = ("blockmgr-*/*/shuffle_*", "blockmgr-*/*/temp_*", "blockmgr-*/*/rdd_*", "query-*/*")
_QUERY_TIMEOUT = 30.0


def clear(context: Purging) -> None:
    """Remove the leftover files of finished queries."""
    now = time.time()
    turns.wait_for_others(now, _QUERY_TIMEOUT, context.check_cancelled)
    for path in _files_before(context, min(now, turns.oldest_other(context.started_at))):
        path.unlink(missing_ok=True)


def _files_before(context: Purging, now: float) -> Iterator[Path]:
    for pattern in _LEFT_BY_QUERIES:
        for path in (context.home.engine / "tmp").glob(f"spark-*/{pattern}"):
            try:
                if path.stat().st_mtime <= now:
                    yield path
            except FileNotFoundError:
                continue
