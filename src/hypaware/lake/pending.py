"""Tell whether a flush has anything to do, from the spool's folders and the state, without starting Spark."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from hypaware.home import Home
from hypaware.opening import open_home
from hypaware.spool import reader, segments

if TYPE_CHECKING:
    from hypaware.state.store import Store


def waits(home: Home, names: Collection[str] | None = None, *, make: bool = True, skip_deferred: bool = False) -> bool:
    """Tell whether there are rows in the spool or interrupted flushes. Checks the folders first, which is cheap.

    `skip_deferred` ignores deferred rows.
    """
    wanted = segments.datasets_with_spool(home) if names is None else names
    if any(reader.waiting(home, name, skip_deferred=skip_deferred).segments for name in wanted):
        return True
    with closing(open_home(home, make=make).store) as store:
        return any(names is None or dataset in names for dataset in unfinished(store))


def unfinished(store: Store) -> set[str]:
    """Return the datasets that have an interrupted flush."""
    from hypaware.state import flushes

    with store.reading() as connection:
        return {flush.dataset for flush in flushes.unfinished(connection)}


def recorded(store: Store) -> bool:
    """Tell whether any row was ever committed."""
    from hypaware.state import flushes

    with store.reading() as connection:
        return bool(flushes.high_water(connection))


def age_of_view(home: Home) -> float | None:
    """Return the seconds since the last recorded flush, or None if there was none."""
    from hypaware.state import flushes

    with closing(open_home(home).store) as store, store.reading() as connection:
        last = flushes.last_flush_at(connection)
    if last is None:
        return None
    age = (datetime.now(UTC) - last).total_seconds()
    # The last flush is in the future because the clock was set back: the age is unknown.
    return age if age >= 0 else float("inf")
