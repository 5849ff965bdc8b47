"""Commit times in the future, which a clock that was ahead leaves in a table's metadata.

Iceberg refuses a commit that is dated more than a minute before the last one ("Expected sorted snapshot log entries"),
so one commit under such a clock would stop all others until its time has come. A new metadata file with these times
lowered to the present replaces the old one. Rows, snapshots and their order do not change.

@ref flush#commit
"""

from __future__ import annotations

from hypaware import faults
from hypaware.home import Home
from hypaware.home.storage import parse_location
from hypaware.iceberg import catalog, metadata
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
    """Lower commit times after `now` to `now`, and return whether there were any.

    A commit that happens in between wins; the next call lowers what is left. A table with torn metadata stays as it is.
    """
    key = (metadata.CATALOG, metadata.NAMESPACE, table)
    with catalog.read_catalog(home) as execute:
        found = execute(f"SELECT metadata_location FROM {catalog.TABLES} {_WHERE}", key) if execute else []
    if not found:
        return False
    ((location,),) = found
    if (content := read_metadata_json(parse_location(location))) is None:
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
    with catalog.change_catalog(home) as execute:
        change = f"UPDATE {catalog.TABLES} SET metadata_location = ?, previous_metadata_location = ?"
        execute(f"{change} {_WHERE} AND metadata_location = ?", (new, location, *key, location))
    _after_update()
    return True
