"""Retention of a lake that machines share. PyIceberg stands in for Spark; PostgreSQL and the S3 server are real."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hypaware.home import Home
from hypaware.iceberg import catalog
from hypaware.maintain import retention
from hypaware.maintain.purge.other_machines import forget_purged
from hypaware.model.datasets import SEQ
from tests.support.light_home import DATASET
from tests.support.light_lake import read_lake
from tests.support.retention_cases import RetentionSite
from tests.support.shared_lake import SharedLakeServers


@pytest.fixture
def sites(servers: SharedLakeServers) -> Iterator[tuple[RetentionSite, RetentionSite]]:
    """Return two machines with one new lake."""
    first, second = (RetentionSite(Home(servers.machine(name).home)) for name in ("first", "second"))
    yield first, second
    catalog._idle.connection = None


def sequences(site: RetentionSite) -> dict[str, int]:
    return {row["message_id"]: row[SEQ] for row in read_lake(site.home, DATASET)}


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
