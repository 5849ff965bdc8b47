"""What queries leave in the engine's scratch folder until Spark forgets them: shuffled rows and spilled results.

A query that began before the rows were gone may have some there. Such queries are waited for, a while; then what no job
that still runs can have written goes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from hypaware.lake import turns
from hypaware.maintain.purge.purging import Purging

_LEFT_BY_QUERIES = ("blockmgr-*/*/shuffle_*", "blockmgr-*/*/temp_*", "blockmgr-*/*/rdd_*", "query-*/*")
_FOR_QUERIES = 30.0


def clear(purging: Purging) -> None:
    moment = time.time()
    turns.wait_for_others(moment, _FOR_QUERIES, purging.check_cancelled)
    for path in _older(purging, min(moment, turns.oldest_other(purging.began))):
        path.unlink(missing_ok=True)


def _older(purging: Purging, moment: float) -> Iterator[Path]:
    for pattern in _LEFT_BY_QUERIES:
        for path in (purging.home.engine / "tmp").glob(f"spark-*/{pattern}"):
            try:
                if path.stat().st_mtime <= moment:
                    yield path
            except FileNotFoundError:
                continue
