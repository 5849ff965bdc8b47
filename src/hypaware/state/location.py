"""Where the state of a home is: `state.db` in the home, or the database of a shared lake."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypaware.home import Home

if TYPE_CHECKING:
    from hypaware.state.store import StateStore


def has_state(home: Home) -> bool:
    """Return whether the home has been opened before. A home of a shared lake has a mirror and no state of its own."""
    if home.state.is_file():
        return True
    if not home.mirror.is_file():
        return False
    # Imported here: a producer calls this before every row that it appends.
    from hypaware.config.shared_lake import find_shared_lake

    return find_shared_lake(home) is not None


def find_machine(home: Home) -> str:
    """Return the key of this home among those that share its lake; empty if the lake is its own."""
    from hypaware.config.shared_lake import find_shared_lake
    from hypaware.home.identity import member_key

    return "" if find_shared_lake(home) is None else member_key(home.root)


def open_store(home: Home, *, read_only: bool = False) -> StateStore:
    """Return the store of the state. In the process that holds the lease on a shared lake, it carries the epoch."""
    from hypaware.config.shared_lake import LAKE_NAME, find_shared_lake
    from hypaware.state.store import StateStore

    if (shared := find_shared_lake(home)) is None:
        return StateStore(home.state, read_only=read_only)
    from hypaware import extras
    from hypaware.iceberg import catalog

    extras.require("team")
    from hypaware.state.postgres_database import PostgresDatabase

    epoch = catalog.held_epoch()
    lease = None if epoch is None else (LAKE_NAME, epoch)
    database = PostgresDatabase(shared.uri, shared.user, shared.password, lease=lease)
    return StateStore(database, read_only=read_only)
