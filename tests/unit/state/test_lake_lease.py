"""The lease on a shared lake: one owner commits, and a former owner never does, with real Iceberg tables."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from hypaware.errors import StateError
from hypaware.home import Home
from hypaware.iceberg.catalog import LEASE_LOST_SQLSTATE, epoch_options
from hypaware.state import flushes, lake_lease
from hypaware.state.postgres_database import PostgresDatabase, lock_number
from hypaware.state.store import StateStore
from tests.support.postgres_server import PASSWORD, USER, PostgresServer
from tests.support.processes import eventually, kill, running

_LAKE, _CATALOG, _TABLE = "lake", "hyp", "hypaware.messages"
_SHORT, _LONG = 0.2, 3600.0
_ROWS = pa.table({"a": pa.array([1], pa.int64())})
_numbers = count()
_APPEND_WHEN_TOLD = """
import sys
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
catalog = SqlCatalog("hyp", uri=sys.argv[1], warehouse=sys.argv[2])
table = catalog.load_table("hypaware.messages")
print("ready", flush=True)
sys.stdin.readline()
try:
    # As Iceberg's Java library does, which appends to the table as it is now, whoever changed it.
    table.refresh()
    table.append(pa.table({"a": pa.array([2], pa.int64())}))
    print("committed", flush=True)
except Exception as error:
    print("lost" if "holds the lease" in str(error) else repr(error), flush=True)
"""
_ACQUIRE = """
import sys, psycopg
from hypaware.state import lake_lease
connection = psycopg.connect(sys.argv[1], autocommit=True)
def run(sql):
    cursor = connection.execute(sql)
    return cursor.fetchall() if cursor.description else []
print(lake_lease.try_acquire(run, "lake", "other", 3600.0, sys.argv[2]), flush=True)
sys.stdin.readline()
"""


@dataclass(frozen=True)
class SharedLake:
    server: PostgresServer
    schema: str
    folder: Path

    def uri(self, epoch: int | None = None) -> str:
        options = f"-c search_path={self.schema}" + (f" {epoch_options(epoch)}" if epoch else "")
        return f"{self.server.whole_uri}?options={quote(options)}"

    def catalog(self, epoch: int | None = None) -> SqlCatalog:
        return SqlCatalog(_CATALOG, uri=self.uri(epoch), warehouse=f"file://{self.folder}")

    def connect(self, epoch: int | None = None) -> Any:
        return psycopg.connect(self.uri(epoch).replace("postgresql+psycopg2", "postgresql"), autocommit=True)

    @contextmanager
    def session(self) -> Iterator[lake_lease.Run]:
        with closing(self.connect()) as connection:

            def run(sql: str) -> Any:
                cursor = connection.execute(sql)
                return cursor.fetchall() if cursor.description else []

            yield run

    def acquire(self, run: lake_lease.Run, seconds: float = _LONG) -> int | None:
        return lake_lease.try_acquire(run, _LAKE, "me", seconds, self.schema)

    def acquire_eventually(self, run: lake_lease.Run, seconds: float = _LONG) -> int:
        found: list[int] = []

        def try_again() -> bool:
            epoch = self.acquire(run, seconds)
            found.extend([epoch] if epoch else [])
            return bool(found)

        eventually(try_again)
        return found[0]

    def values(self) -> list[int]:
        return sorted(self.catalog().load_table(_TABLE).scan().to_arrow()["a"].to_pylist())


@pytest.fixture
def lake(postgres: PostgresServer, tmp_path: Path) -> SharedLake:
    """Return a lake with an empty table, which the owner of epoch 1 created and left."""
    made = SharedLake(postgres, f"lease_{next(_numbers)}", tmp_path / "warehouse")
    postgres.execute(f"CREATE SCHEMA {made.schema}")
    with made.session() as run:
        made.catalog()  # creates the tables of the catalog
        lake_lease.install_fence(run, made.schema)
        lake_lease.guard_catalog(run, _LAKE, _CATALOG, made.schema)
        assert made.acquire(run) == 1
        catalog = made.catalog(1)
        catalog.create_namespace("hypaware")
        catalog.create_table(_TABLE, _ROWS.schema)
    return made


def test_who_has_the_lease_and_who_waits_can_be_asked(lake: SharedLake) -> None:
    arguments = (_LAKE, lake.schema)

    def holder(run: lake_lease.Run, seconds: float = _LONG) -> lake_lease.LakeHolder | None:
        return lake_lease.find_holder(run, _LAKE, seconds, lake.schema)

    with lake.session() as other:
        with lake.session() as run:
            lake.acquire_eventually(run)
            assert not lake_lease.is_wanted(run, *arguments)
            lake_lease.note_waiter(other, _LAKE, "you-2", lake.schema)
            assert lake_lease.is_wanted(run, *arguments)
            found = holder(other)
            assert found is not None
            assert (found.owner, found.waiting) == ("me", 1)
            assert abs(found.since - datetime.now(UTC)) < timedelta(hours=1)
            assert holder(other, seconds=0) is None, "an owner that does not renew its lease can be replaced"
            lake_lease.forget_waiter(other, _LAKE, "you-2", lake.schema)
            assert not lake_lease.is_wanted(run, *arguments)
        eventually(lambda: holder(other) is None)
        # Nobody has asked for a while.
        lake_lease.note_waiter(other, _LAKE, "you-2", lake.schema)
        other(f"UPDATE {lake.schema}.lake_waiters SET seen_at = seen_at - interval '2 hours'")
        assert not lake_lease.is_wanted(other, *arguments)
        lake_lease.forget_waiters(other, *arguments)
        assert other(f"SELECT * FROM {lake.schema}.lake_waiters") == []


def test_a_lease_has_one_owner_and_each_owner_a_higher_epoch(lake: SharedLake) -> None:
    with lake.session() as other:
        with lake.session() as run:
            assert lake.acquire_eventually(run) == 2
            assert lake.acquire(other) is None
            assert lake_lease.renew(run, _LAKE, 2, lake.schema)
        assert lake.acquire_eventually(other) == 3
        assert not lake_lease.renew(other, _LAKE, 2, lake.schema)


def test_only_the_owner_commits(lake: SharedLake) -> None:
    with lake.session() as run:
        epoch = lake.acquire_eventually(run)
        lake.catalog(epoch).load_table(_TABLE).append(_ROWS)
        for stranger in (None, epoch - 1, epoch + 1):
            with pytest.raises(Exception, match="holds the lease"):
                lake.catalog(stranger).load_table(_TABLE).append(_ROWS)
        with pytest.raises(Exception, match="holds the lease"):
            lake.catalog().drop_table(_TABLE)
    assert lake.values() == [1]


def test_a_table_of_another_catalog_in_the_same_database_is_not_guarded(lake: SharedLake) -> None:
    other = SqlCatalog("other", uri=lake.uri(), warehouse=f"file://{lake.folder}-other")
    other.create_namespace("n")
    other.create_table("n.t", _ROWS.schema).append(_ROWS)
    assert other.load_table("n.t").scan().to_arrow().num_rows == 1


def test_a_killed_owner_is_replaced_before_its_lease_ends(lake: SharedLake, home: Home) -> None:
    address = lake.uri().replace("postgresql+psycopg2", "postgresql")
    with lake.session() as run:
        # The session that created the lake may end a moment later.
        eventually(lambda: not run(f"SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND {_of_lake(lake)}"))
        with running(_ACQUIRE, home, address, lake.schema) as owner:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "2\n"
            assert lake.acquire(run) is None
            kill(owner)
        assert lake.acquire_eventually(run) == 3


def _of_lake(lake: SharedLake) -> str:
    number = lock_number(f"lake {lake.schema} {_LAKE}")
    return f"(classid::BIGINT << 32 | objid::BIGINT) = {number}"


@pytest.mark.hazard(115)
def test_an_owner_that_was_stopped_for_longer_than_its_lease_cannot_commit(lake: SharedLake, home: Home) -> None:
    with lake.session() as stopped, lake.session() as run:
        epoch = lake.acquire_eventually(stopped)
        with running(_APPEND_WHEN_TOLD, home, lake.uri(epoch), f"file://{lake.folder}") as owner:
            assert owner.stdin is not None
            assert owner.stdout is not None
            assert owner.stdout.readline() == "ready\n"
            owner.send_signal(signal.SIGSTOP)
            # Its session and its lock remain, and it does not renew the lease.
            later = lake.acquire_eventually(run, _SHORT)
            assert later > epoch
            lake.catalog(later).load_table(_TABLE).append(_ROWS)
            owner.send_signal(signal.SIGCONT)
            owner.stdin.write("\n")
            owner.stdin.flush()
            assert owner.stdout.readline() == "lost\n"
        with pytest.raises(psycopg.Error):
            stopped("SELECT 1")
    assert lake.values() == [1]


def test_an_owner_that_renews_keeps_the_lease(lake: SharedLake) -> None:
    with lake.session() as owner, lake.session() as other:
        epoch = lake.acquire_eventually(owner)
        for _ in range(3):
            assert lake_lease.renew(owner, _LAKE, epoch, lake.schema)
            assert lake.acquire(other) is None
        assert owner("SELECT 1")


@pytest.mark.hazard(115)
def test_a_takeover_waits_for_a_commit_that_has_begun_and_the_new_owner_sees_it(lake: SharedLake) -> None:
    table = "UPDATE iceberg_tables SET metadata_location = 'new' WHERE table_name = 'messages'"
    waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND pid = "
    with lake.session() as owner, lake.session() as other, lake.session() as watcher:
        epoch = lake.acquire_eventually(owner)
        ((other_pid,),) = other("SELECT pg_backend_pid()")
        taken = threading.Event()

        def take_over() -> tuple[int, str]:
            later = lake.acquire_eventually(other, 0.0)
            taken.set()
            return later, other("SELECT metadata_location FROM iceberg_tables")[0][0]

        with closing(lake.connect(epoch)) as committing, ThreadPoolExecutor(1) as pool:
            committing.execute("BEGIN")
            committing.execute(table)
            outcome = pool.submit(take_over)
            eventually(lambda: bool(watcher(f"{waiting}{other_pid}")))
            assert not taken.is_set()
            committing.execute("COMMIT")
            later, seen = outcome.result()
        assert (later, seen) == (epoch + 1, "new")
        with closing(lake.connect(epoch)) as late, pytest.raises(psycopg.Error) as told:
            late.execute(table)
        assert told.value.sqlstate == LEASE_LOST_SQLSTATE


@pytest.mark.hazard(115)
def test_a_former_owner_cannot_change_the_state(lake: SharedLake) -> None:
    """It would discard the flush of the new owner when it recovers, and the rows would be committed twice."""
    address = f"postgresql://127.0.0.1:{lake.server.port}/postgres"
    receiver = PostgresDatabase(address, USER, PASSWORD, lake.schema)
    with lake.session() as first, lake.session() as second:
        former = replace(receiver, lease=(_LAKE, lake.acquire_eventually(first)))
        with closing(StateStore(former)) as store:
            store.migrate()
            owner = replace(receiver, lease=(_LAKE, lake.acquire_eventually(second, _SHORT)))
            with closing(StateStore(owner)) as own, own.transaction() as connection:
                flush = flushes.reserve_range(connection, "ai_gateway_messages", 5)
            with pytest.raises(StateError) as told, store.transaction() as connection:
                flushes.discard_flush(connection, flush)
            assert told.value.kind == "lease_lost"
            with store.reading() as connection:
                assert flushes.unfinished_flushes(connection) == [flush]
        with closing(StateStore(receiver)) as ledger, ledger.transaction() as connection:
            connection.insert("meta", {"key": "a process without a lease", "value": ""})


def test_the_address_of_the_jvm_carries_the_epoch() -> None:
    assert lake_lease.fenced_jdbc_uri("jdbc:postgresql://h/d", 7) == (
        "jdbc:postgresql://h/d?options=-c%20hypaware.epoch%3D7"
    )
    assert lake_lease.fenced_jdbc_uri("jdbc:postgresql://h/d?ssl=true", 7).count("?") == 1


@pytest.mark.parametrize("name", ["", "a'b", "a b", "a;b"])
def test_a_name_cannot_carry_sql(name: str) -> None:
    with pytest.raises(ValueError, match="not a name"):
        lake_lease.try_acquire(lambda sql: [], name, "me", 1.0)
