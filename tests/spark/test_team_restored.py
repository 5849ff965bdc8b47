"""The database of a shared lake is restored to an earlier copy: sequences that sinks may know are not used again.

PyIceberg stands in for Spark; PostgreSQL and the S3 server are real.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from hypaware.errors import LakeError
from hypaware.home import Home
from hypaware.iceberg import catalog
from hypaware.state import flushes
from hypaware.state.home_opener import open_home, take_shared_mirror
from tests.support.light_home import append, flush
from tests.support.rows import rows
from tests.support.shared_lake import SharedLakeServers


@pytest.fixture
def machines(servers: SharedLakeServers) -> Iterator[tuple[Home, Home, Home]]:
    first, second, new = (Home(servers.machine(name).home) for name in ("first", "second", "new"))
    yield first, second, new
    catalog._idle.connection = None


def identity(home: Home) -> tuple[str, int]:
    """Return the incarnation and the next sequence, as an engine finds them when it gets the lake."""
    take_shared_mirror(home)
    opened = open_home(home)
    with closing(opened.store) as store, store.reading() as connection:
        return opened.identity.incarnation, flushes.next_sequence(connection)


def restore(servers: SharedLakeServers, copy: str) -> None:
    for name, become in ((servers.database, f"{servers.database}_gone"), (copy, servers.database)):
        disconnect(servers, name)
        servers.postgres.execute(f"ALTER DATABASE {name} RENAME TO {become}")


def disconnect(servers: SharedLakeServers, database: str) -> None:
    catalog._idle.connection = None
    servers.postgres.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'")


@pytest.mark.hazard(17)
def test_a_machine_that_has_not_seen_what_was_lost_detects_a_restored_database(
    servers: SharedLakeServers, machines: tuple[Home, Home, Home]
) -> None:
    first, second, new = machines
    append(second, rows(1))
    flush(second)
    copy = f"{servers.database}_copy"
    disconnect(servers, servers.database)
    servers.postgres.execute(f"CREATE DATABASE {copy} TEMPLATE {servers.database}")
    before = identity(second)
    assert identity(second) == identity(new) == before, "nothing is restored yet"
    append(first, rows(10, start=1))
    flush(first)
    used = identity(first)[1]
    restore(servers, copy)
    incarnation, next_sequence = identity(second)
    assert incarnation != before[0]
    assert next_sequence >= used
    assert identity(new) == (incarnation, next_sequence)
    assert identity(first)[0] == incarnation
    append(first, rows(10, start=1))
    with pytest.raises(LakeError, match="was rolled back"):
        flush(first)
