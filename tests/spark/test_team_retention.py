"""Retention of a lake that machines share. PyIceberg stands in for Spark; PostgreSQL and the S3 server are real."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from hypaware.home import Home
from hypaware.iceberg import catalog
from hypaware.maintain import retention
from hypaware.maintain.purge.other_machines import forget_purged
from hypaware.model.datasets import SEQ
from tests.support.light_home import DATASET, append, flush
from tests.support.light_lake import read_lake
from tests.support.light_process import was_killed
from tests.support.retention_cases import NOW, RetentionSite
from tests.support.rows import row
from tests.support.shared_lake import SharedLakeServers


@pytest.fixture
def sites(servers: SharedLakeServers) -> Iterator[tuple[RetentionSite, RetentionSite]]:
    """Return two machines with one new lake."""
    first, second = (RetentionSite(Home(servers.machine(name).home)) for name in ("first", "second"))
    yield first, second
    catalog._idle.connection = None


def sequences(site: RetentionSite) -> dict[str, int]:
    return {each["message_id"]: each[SEQ] for each in read_lake(site.home, DATASET)}


@pytest.mark.hazard(102)
def test_days_that_are_readmitted_can_be_restored_by_another_machine_that_has_their_keys(
    sites: tuple[RetentionSite, RetentionSite],
) -> None:
    first, second = sites
    first.commit(20, 0)
    second.numbers = 2
    second.commit(0)
    before = sequences(first)
    first.configure(default_days=5)
    first.retain()
    first.configure(default_days=30)
    first.retain(step=retention.readmit_days)
    assert len(sequences(first)) == 2
    forget_purged(second.home)
    second.numbers = 0
    second.commit(20)
    assert sequences(second) == before


@pytest.mark.hazard(4)
def test_a_machine_that_was_off_for_weeks_does_not_commit_its_segment_again(
    servers: SharedLakeServers, sites: tuple[RetentionSite, RetentionSite]
) -> None:
    """It was killed when its rows were in the lake, another machine recorded that, and retention has removed them."""
    off, other = sites
    other.commit(0)
    append(off.home, [row(number, message_created_at=(NOW - timedelta(days=20)).isoformat()) for number in (1, 2)])
    assert was_killed(off.home, "flush", crash_at="lake.commit.after-commit")
    flush(other.home)
    assert len(sequences(other)) == 3
    servers.execute("UPDATE hypaware.segments SET updated_at = to_char(now() - interval '60 days', 'YYYY-MM-DD')")
    other.numbers = 3
    other.commit(0)
    other.configure(default_days=5)
    other.retain()
    assert flush(off.home).rows.total == 0
    assert not list((off.home.spool / DATASET / "sealed").iterdir())
    assert sequences(off).keys() == {"message-0", "message-3"}
