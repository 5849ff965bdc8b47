"""Flushes into a shared lake that are killed at every crash point: other machines finish them, each row is stored once.

PyIceberg stands in for Spark; PostgreSQL and the S3 server are real. `test_team_profile` does the same with Spark, at a
few points.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import pytest

from hypaware.faults import list_crash_points
from hypaware.home import Home
from hypaware.iceberg import catalog
from hypaware.model.datasets import SEQ
from hypaware.spool import segments
from hypaware.state import flushes
from hypaware.state.home_opener import open_home
from tests.support.light_home import DATASET, append, flush
from tests.support.light_lake import read_lake
from tests.support.light_process import was_killed
from tests.support.rows import rows
from tests.support.shared_lake import SharedLakeServers

# Objects are durable when they are written, so nothing is synced.
LOCAL_ONLY = ("iceberg.", "lake.intake", "lake.settlements", "lake.tombstones", "lake.poison", "lake.lost")
ALL = [
    point.name
    for point in list_crash_points()
    if point.package in ("state", "lake") and not point.name.startswith(LOCAL_ONLY)
]
# Each kill is a process of its own.
CHOSEN = ["lake.reserve.after-commit", "lake.commit.after-commit", "lake.keys.before-commit"]
KILLS = ALL if "HYP_SOAK" in os.environ else CHOSEN


@pytest.fixture
def machines(servers: SharedLakeServers) -> Iterator[tuple[Home, Home]]:
    """Return two homes with one new lake."""
    yield Home(servers.machine("first").home), Home(servers.machine("second").home)
    catalog._idle.connection = None


def test_a_flush_that_is_killed_is_finished_by_another_machine(machines: tuple[Home, Home]) -> None:
    """Each flush is killed at another point, on one machine and then on the other."""
    sent, unreached = set[str](), []
    flush(machines[0])
    for place, point in enumerate(KILLS):
        home, other = machines[place % 2], machines[(place + 1) % 2]
        # Five rows that the other machine has sent before, and a line that is rejected.
        found = rows(10, start=5 * place)
        append(home, found)
        sent |= {str(row["message_id"]) for row in found}
        folder = segments.spool_folder(home, DATASET)
        (folder.sealed / segments.sealed_file_name(segments.new_segment_name(), 1)).write_bytes(
            b'{"n":0,"v":1,"row":{"role":1}}\n'
        )
        if not was_killed(home, "flush", crash_at=point):
            unreached.append(point)
        flush(other)
        flush(home)
        stored = read_lake(home, DATASET)
        assert Counter(row["message_id"] for row in stored) == Counter(sent), point
        assert len({row[SEQ] for row in stored}) == len(stored), point
        with closing(open_home(home).store) as store, store.reading() as connection:
            assert flushes.unfinished_flushes(connection) == [], point
    assert unreached == []
