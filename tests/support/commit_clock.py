"""Date a commit as a clock that was wrong would have dated it, in the table's metadata and in the state."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime

from hypaware.home import Home
from hypaware.iceberg import metadata


def date_last_commit(home: Home, dataset: str, when: datetime) -> None:
    entry = metadata.find_table(home, dataset)
    assert entry
    content = json.loads(entry.metadata.read_bytes())
    at = round(when.timestamp() * 1000)
    content["last-updated-ms"] = at
    for name in ("snapshots", "snapshot-log"):
        content[name][-1]["timestamp-ms"] = at
    entry.metadata.write_bytes(json.dumps(content).encode())
    # Hadoop checks the file against this one.
    entry.metadata.with_name(f".{entry.metadata.name}.crc").unlink(missing_ok=True)
    date_last_flush(home, dataset, when)


def date_last_flush(home: Home, dataset: str, when: datetime) -> None:
    with closing(sqlite3.connect(home.state, isolation_level=None)) as state:
        state.execute(
            "UPDATE flushes SET finished_at = ? WHERE id = (SELECT id FROM flushes WHERE dataset = ?"
            " AND status = 'committed' ORDER BY seq_last DESC LIMIT 1)",
            (when.astimezone(UTC).isoformat(), dataset),
        )
