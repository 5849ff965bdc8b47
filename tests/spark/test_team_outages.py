"""PostgreSQL or the bucket fails in the middle of a flush or a purge, and clocks differ: nothing is lost or doubled.

PyIceberg stands in for Spark. An outage is real: the database ends all sessions and accepts no new ones.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.exc import OperationalError

from hypaware.config import Config, FlushConfig
from hypaware.errors import HypError
from hypaware.home import Home
from hypaware.iceberg import catalog
from hypaware.lake import tombstones
from hypaware.lake.build import BuildFailure, BuildResult, Task
from hypaware.lake.flush import Flusher
from hypaware.maintain.purge.context import PurgeContext
from hypaware.maintain.purge.run import run_purge
from hypaware.maintain.purge.selector import PurgeSelector
from hypaware.model import datasets
from hypaware.state.home_opener import open_home
from hypaware.status import doctor, doctor_home
from tests.support.light_home import DATASET, append, flush
from tests.support.light_lake import LightLake, read_lake
from tests.support.light_purge import describe_live_files_only, purge
from tests.support.rows import rows
from tests.support.shared_lake import SharedLakeServers


@pytest.fixture
def home(servers: SharedLakeServers) -> Iterator[Home]:
    yield Home(servers.machine("first").home)
    catalog._idle.connection = None


class FailingLake(LightLake):
    """A lake whose database goes away after some batches of tasks."""

    def __init__(self, home: Home, servers: SharedLakeServers, batches: int) -> None:
        super().__init__(home)
        self._servers = servers
        self._left = batches

    def run(self, tasks: Sequence[Task]) -> list[BuildResult | BuildFailure]:
        results = super().run(tasks)
        self._left -= 1
        if self._left == 0:
            stop_database(self._servers)
        return results


def stop_database(servers: SharedLakeServers) -> None:
    servers.postgres.execute(f"ALTER DATABASE {servers.database} ALLOW_CONNECTIONS false")
    servers.postgres.execute(
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{servers.database}'"
    )


def start_database(servers: SharedLakeServers) -> None:
    servers.postgres.execute(f"ALTER DATABASE {servers.database} ALLOW_CONNECTIONS true")


def messages(home: Home) -> Counter[str]:
    return Counter(row["message_id"] for row in read_lake(home, DATASET))


def numbered(*numbers: int) -> Counter[str]:
    return Counter(f"message-{number}" for number in numbers)


def test_a_flush_that_loses_the_database_is_repeated(servers: SharedLakeServers, home: Home) -> None:
    append(home, rows(5))
    flush(home)
    append(home, rows(5, start=3))
    # In its commit, which is that of PyIceberg here.
    with (
        closing(open_home(home).store) as store,
        closing(FailingLake(home, servers, 1)) as lake,
        pytest.raises((HypError, OperationalError)),
    ):
        Flusher(home, store, lake, FlushConfig()).flush(datasets.get(DATASET), wait=0)
    with pytest.raises(HypError, match=r"lake\.state"):
        flush(home)
    start_database(servers)
    assert flush(home).rows.written == 3
    assert messages(home) == numbered(*range(8))


@pytest.mark.parametrize("batches", [1, 2])
def test_a_purge_that_loses_the_database_names_it_and_is_repeated(
    servers: SharedLakeServers, home: Home, batches: int
) -> None:
    """The database goes away after the search, or after the files were written again."""
    append(home, [*rows(3), *rows(3, start=3, session_id="unwanted-session")])
    flush(home)
    selector = PurgeSelector("session", ("unwanted-session",))
    with closing(open_home(home).store) as store, closing(FailingLake(home, servers, batches)) as lake:
        context = PurgeContext(home, Config(), store, lake, selector, describe_live_files_only, wait=0.0)
        with pytest.raises(HypError, match=r"lake\.(state|catalog)"):
            run_purge(context)
    start_database(servers)
    assert messages(home) == numbered(*range(6))
    assert tombstones.list_unfinished_purges(home) == ["hyp purge --session unwanted-session"]
    report = purge(home, "session", "unwanted-session")
    assert (report["remaining"], report["again"]) == ([], True)
    assert messages(home) == numbered(*range(3))


def test_doctor_names_the_machine_whose_clock_differs_from_that_of_the_database(home: Home) -> None:
    append(home, rows(1))
    flush(home)
    for ahead, status in ((0, "ok"), (7200, "failed")):
        inputs = doctor.read_input(home, now=datetime.now(UTC) + timedelta(seconds=ahead))
        (found,) = doctor_home.check_clock(inputs)
        assert found.status == status
    assert f"{socket.gethostname()} is 7,2" in found.detail
    assert "ahead of that of the database" in found.detail
