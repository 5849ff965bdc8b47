"""A check of this machine's clock. Retention drops nothing while the clock contradicts the lake."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from hypaware.home import Home
from hypaware.lake import metadata
from hypaware.model.datasets import Dataset
from hypaware.state import flushes

if TYPE_CHECKING:
    from hypaware.state.store import Store

# Flushes continue while a job waits for the lock; that does not mean that the clock went back.
_TOLERANCE = timedelta(hours=1)
# A machine may be idle for long, but one whose clock jumps to another decade must not empty its lake.
_LEAP = timedelta(days=180)


def trouble(home: Home, store: Store, dataset: Dataset, now: datetime) -> str | None:
    """Return a warning if rows were committed in the future, or none were committed for a very long time."""
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
        f"this machine's clock shows {now:%Y-%m-%d %H:%M} (UTC), but the last commit to {dataset.name} was at "
        f"{then:%Y-%m-%d %H:%M}: the clock may be wrong, so nothing is dropped before the next commit"
    )
