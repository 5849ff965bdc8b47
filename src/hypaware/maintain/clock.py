"""Whether this machine's clock can be believed: days are not dropped by one that contradicts the lake."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from hypaware.home import Home
from hypaware.lake import metadata
from hypaware.model.datasets import Dataset
from hypaware.state import flushes

if TYPE_CHECKING:
    from hypaware.state.store import Store

# While a job waits for its turn, flushes go on: that is no clock which went back.
_TOLERANCE = timedelta(hours=1)
# A machine may lie idle for long. One that wakes up in another decade must not empty its lake.
_LEAP = timedelta(days=180)


def trouble(home: Home, store: Store, dataset: Dataset, now: datetime) -> str | None:
    """In words, where something was committed in what is the future now, or nothing for very long."""
    entry = metadata.entry(home, dataset.name)
    times = [snapshot.at for snapshot in metadata.read(entry.metadata).snapshots] if entry else []
    with store.reading() as connection:
        if flushed := flushes.last_flush_at(connection, dataset.name):
            times.append(flushed.timestamp())
    if not times:
        return None
    latest = max(times)
    if (now - _LEAP).timestamp() <= latest <= (now + _TOLERANCE).timestamp():
        return None
    then = datetime.fromtimestamp(latest, UTC)
    return (
        f"this machine's clock says {now:%Y-%m-%d %H:%M} (UTC), and rows of {dataset.name} were committed at "
        f"{then:%Y-%m-%d %H:%M} last: the clock may be wrong, so no day is dropped until something is committed"
    )
