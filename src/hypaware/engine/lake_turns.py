"""Who has the shared lake, and how a background task waits for its turn without an engine.

One engine at a time holds the lease on a shared lake. It gives the lease back soon after its last job if another waits
(`lake_waiters`), so many machines take turns. A task that must wait starts no JVM for that: it asks the database every
few seconds. Two tasks that find the lake free may start their engines at once: one of them then waits with its JVM.
"""

from __future__ import annotations

from hypaware.config.shared_lake import LAKE_NAME, find_shared_lake
from hypaware.engine import client
from hypaware.home import Home
from hypaware.iceberg.catalog import read_catalog
from hypaware.state import lake_lease
from hypaware.state.lake_lease import LakeHolder

POLL_SECONDS = 3.0
# Longer than most jobs. After that, the task reports who has the lake, and waits again.
MAX_WAIT_SECONDS = 600.0


def find_lake_holder(home: Home) -> LakeHolder | None:
    """Return who holds the lease on the shared lake of a home. None if it is free, or the lake is not shared."""
    if find_shared_lake(home) is None:
        return None
    with read_catalog(home) as execute:
        if execute is None:
            return None
        return lake_lease.find_holder(lambda sql: execute(sql, ()), LAKE_NAME, lake_lease.LEASE_SECONDS)


def find_other_holder(home: Home) -> LakeHolder | None:
    """Return the holder of the lease if this home has to wait for it, and note that it waits."""
    if find_shared_lake(home) is None or client.engine_status(home)["state"] == "running":
        return None
    holder = find_lake_holder(home)
    with read_catalog(home) as execute:
        if execute is not None and lake_lease.has_leases(run := lambda sql: execute(sql, ())):
            if holder is not None:
                lake_lease.note_waiter(run, LAKE_NAME, lake_lease.own_name())
            else:
                lake_lease.forget_waiter(run, LAKE_NAME, lake_lease.own_name())
    return holder
