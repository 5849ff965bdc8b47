"""Commit times in the future, which a clock that was ahead leaves in a table's metadata.

Iceberg refuses a commit that is dated more than a minute before the last one ("Expected sorted snapshot log entries"),
so one commit under such a clock would stop all others until its time has come. A new metadata file with these times
lowered to the present replaces the old one. Rows, snapshots and their order do not change.

@ref flush#commit
"""

from __future__ import annotations

import sqlite3
from contextlib import closing

from hypaware import faults
from hypaware.home import Home
from hypaware.home.sqlite_readonly import open_readonly
from hypaware.iceberg import metadata
from hypaware.iceberg.relocate import read_metadata_json, write_metadata_json

_before_update = faults.crash_point(
    "iceberg.times.before-update", "metadata without times in the future is written, the catalog references the old one"
)
_after_update = faults.crash_point("iceberg.times.after-update", "the catalog references metadata without such times")
# Iceberg tolerates a minute.
_TOLERANCE_MS = 30_000
_WHERE = "WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?"
_DATED_LISTS = ("snapshots", "snapshot-log", "metadata-log")


def lower_future_times(home: Home, table: str, now: float) -> bool:
    """Lower commit times after `now` to `now`, and tell whether there were any.

    A commit that happens in between wins; the next call lowers what is left. A table with torn metadata stays as it is.
    """
    if metadata.find_table(home, table) is None:
        return False
    key = (metadata.CATALOG, metadata.NAMESPACE, table)
    with open_readonly(home.catalog) as catalog:
        ((location,),) = catalog.execute(f"SELECT metadata_location FROM iceberg_tables {_WHERE}", key)
    if (content := read_metadata_json(metadata.local_path(location))) is None:
        return False
    now_ms = round(now * 1000)
    dated = [each for name in _DATED_LISTS for each in content.get(name) or ()]
    latest = max([content.get("last-updated-ms", 0), *(each["timestamp-ms"] for each in dated)])
    if latest <= now_ms + _TOLERANCE_MS:
        return False
    for each in dated:
        each["timestamp-ms"] = min(each["timestamp-ms"], now_ms)
    replaced = {"timestamp-ms": now_ms, "metadata-file": location}
    content["metadata-log"] = [*(content.get("metadata-log") or ()), replaced]
    content["last-updated-ms"] = now_ms
    new = write_metadata_json(location, content)
    _before_update()
    with closing(sqlite3.connect(home.catalog, timeout=30, isolation_level=None)) as catalog:
        catalog.execute("PRAGMA synchronous=FULL")
        change = "UPDATE iceberg_tables SET metadata_location = ?, previous_metadata_location = ?"
        catalog.execute(f"{change} {_WHERE} AND metadata_location = ?", (new, location, *key, location))
    _after_update()
    return True
