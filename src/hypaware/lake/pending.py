"""What waits for a flush, told from the spool's folders and the state: no Spark is started to learn "nothing"."""

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


def waits(home: Home, names: Collection[str] | None = None, *, make: bool = True, patient: bool = False) -> bool:
    """Rows in the spool, or a flush that somebody left unfinished; the folders are asked first, they are cheap.

    With `patient`, rows that may wait longer do not count.
    """
    wanted = segments.datasets_with_spool(home) if names is None else names
    if any(reader.waiting(home, name, patient=patient).segments for name in wanted):
        return True
    with closing(open_home(home, make=make).store) as store:
        return any(names is None or dataset in names for dataset in unfinished(store))


def unfinished(store: Store) -> set[str]:
    """Datasets with a flush that somebody left unfinished."""
    from hypaware.state import flushes

    with store.reading() as connection:
        return {flush.dataset for flush in flushes.unfinished(connection)}


def recorded(store: Store) -> bool:
    """Whether any row was ever committed."""
    from hypaware.state import flushes

    with store.reading() as connection:
        return bool(flushes.high_water(connection))


def age_of_view(home: Home) -> float | None:
    """Seconds since the last flush that was recorded; None if there was none."""
    from hypaware.state import flushes

    with closing(open_home(home).store) as store, store.reading() as connection:
        last = flushes.last_flush_at(connection)
    if last is None:
        return None
    age = (datetime.now(UTC) - last).total_seconds()
    # A flush from the future: the clock went back, and nobody knows how old the view is.
    return age if age >= 0 else float("inf")
