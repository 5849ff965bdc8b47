"""The connection to PostgreSQL breaks after a change was sent and before its answer: nothing is lost or doubled.

The change has happened, and whoever asked for it does not know. Real servers; the network breaks in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest
from sqlalchemy.exc import DBAPIError

from hypaware.errors import HypError
from hypaware.home import Home
from hypaware.iceberg import catalog
from tests.support.light_home import append, flush
from tests.support.light_lake import read_lake
from tests.support.lost_answers import BreakingNetwork, lost_answers
from tests.support.rows import DATASET, rows
from tests.support.shared_lake import SharedLakeServers

_COUNT = f"SELECT count(*) AS n, count(DISTINCT message_id) AS ids FROM {DATASET}"


@pytest.fixture
def network(servers: SharedLakeServers) -> Iterator[BreakingNetwork]:
    with lost_answers(servers.postgres.port) as found:
        yield found
    catalog._idle.connection = None


def address_through(network: BreakingNetwork, servers: SharedLakeServers) -> str:
    return f"postgresql://127.0.0.1:{network.port}/{servers.database}"


def test_spark_does_not_repeat_a_commit_whose_answer_was_lost(
    servers: SharedLakeServers, network: BreakingNetwork
) -> None:
    """Iceberg repeats it by itself: on top of its own commit, or it removes the files of its own commit."""
    hyp = servers.machine("first", address=address_through(network, servers))
    hyp.ingest(rows(10))
    hyp.ok("flush")
    network.lose_answer_to(b"UPDATE iceberg_tables")
    hyp.ingest(rows(10, start=10))
    hyp.run("flush")
    assert network.has_lost
    hyp.ok("flush")
    assert hyp.query(_COUNT) == [{"n": 20, "ids": 20}]
    network.lose_answer_to(b"UPDATE iceberg_tables")
    hyp.run("maintain", "--force")
    assert network.has_lost
    assert hyp.query(_COUNT) == [{"n": 20, "ids": 20}]
    assert hyp.ok("verify", "--deep")["ok"] is True
    hyp.ok("engine", "stop")


def test_a_flush_is_finished_once_whichever_of_its_commits_has_no_answer(
    servers: SharedLakeServers, network: BreakingNetwork
) -> None:
    home = Home(servers.machine("first", address=address_through(network, servers)).home)
    append(home, rows(1))
    flush(home)
    number = 0
    while number == 0 or network.has_lost:
        number += 1
        append(home, rows(1, start=number))
        network.lose_answer_to(b"COMMIT", number)
        with suppress(HypError, DBAPIError):
            flush(home)
    network.lose_answer_to(b"no request holds this", 0)
    flush(home)
    assert number > 3, "a flush commits more often"
    assert Counter(row["message_id"] for row in read_lake(home, DATASET)) == Counter(
        f"message-{each}" for each in range(number + 1)
    )
