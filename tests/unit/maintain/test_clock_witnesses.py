"""Whether the clock is trusted to drop rows: commits, files and servers as witnesses."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, timedelta
from email.utils import format_datetime

import pytest
from aiohttp import web

from hypaware.config import SinkConfig
from hypaware.export.delivery import DeliveryOptions, Driver
from hypaware.home import Home
from hypaware.lake.read import LakeRowReader
from hypaware.state import flushes
from hypaware.state.flushes import SourceCheckpoint
from hypaware.state.home_opener import open_home
from hypaware.state.server_clocks import ServerClock, list_server_clocks, record_server_clock
from hypaware.testing import fault_injection
from hypaware.testing.folder_sink import FOLDER
from tests.support.commit_clock import date_last_commit
from tests.support.forward_servers import served
from tests.support.light_home import DATASET
from tests.support.retention_cases import NOW, RetentionSite, later

pytestmark = pytest.mark.hazard(102)
WRONG = 4000
"""How many days the clock is ahead."""


@pytest.fixture
def site(home: Home) -> Iterator[RetentionSite]:
    with fault_injection.register_kind(FOLDER):
        yield RetentionSite(home)


def commit_on(site: RetentionSite, *days: int) -> None:
    """Commit a row on each day, as a clock that shows it would date the row, the commit and the file."""
    for day in days:
        known = set(site.data_files())
        site.commit(-day)
        date_last_commit(site.home, DATASET, later(day))
        for path in set(site.data_files()) - known:
            os.utime(path, (later(day).timestamp(),) * 2)


def hear(site: RetentionSite, host: str, seen: int, date: int) -> None:
    """Record that a server's clock showed a day when this one showed another."""
    with closing(open_home(site.home).store) as store:
        record_server_clock(store, ServerClock(host, later(seen), later(date)))


def import_transcript(site: RetentionSite, day: int) -> None:
    checkpoint = SourceCheckpoint(
        "claude", DATASET, f"/{day}.jsonl", 1, 1, round(later(day).timestamp() * 1e9), 1, "", (), True, (), None, None
    )
    with closing(open_home(site.home).store) as store, store.transaction() as connection:
        flushes.store_checkpoint(connection, checkpoint)


def a_wrong_clock(site: RetentionSite) -> int:
    """Work for three days, then for eight days under a clock that is years ahead; return its present day."""
    commit_on(site, -3, -2, -1, *range(WRONG, WRONG + 8))
    return WRONG + 7


# Commits alone


def test_a_week_under_a_clock_is_enough_if_no_other_witness_objects(site: RetentionSite) -> None:
    """This is a machine that was off for years, too."""
    assert site.retain(later(a_wrong_clock(site))).rows_expired == 3


# Servers


def test_a_wrong_clock_is_not_trusted_after_a_week_if_a_server_disagrees(site: RetentionSite) -> None:
    today = a_wrong_clock(site)
    hear(site, "collect.example", today, 8)
    messages = site.messages()
    report = site.retain(later(today))
    assert (report.rows_expired, site.messages(), site.retained_from) == (0, messages, None)
    assert "collect.example sent the time" in report.reasons[0]
    assert "the clock may be wrong" in report.reasons[0]


def test_a_clock_that_is_ahead_by_weeks_is_found_by_a_server(site: RetentionSite) -> None:
    """Commits alone do not show it: a machine may be idle for so long."""
    commit_on(site, -3, -2, -1, 60, 61)
    assert site.retain(later(61), dry_run=True).rows_expired == 3
    hear(site, "collect.example", 61, 1)
    assert site.retain(later(61)).rows_expired == 0


def test_one_server_with_a_wrong_clock_stops_nothing(site: RetentionSite) -> None:
    commit_on(site, -40, -30, -20, -10, -5, 0)
    hear(site, "wrong.example", 0, -400)
    assert site.retain().rows_expired == 1


@pytest.mark.parametrize(("agreeing", "dropped"), [(0, 0), (1, 0), (2, 1)])
def test_servers_are_believed_by_their_number(site: RetentionSite, agreeing: int, dropped: int) -> None:
    commit_on(site, -40, -30, -20, -10, -5, 0)
    for number in range(2):
        hear(site, f"behind-{number}.example", 0, -400)
    for number in range(agreeing):
        hear(site, f"agrees-{number}.example", 0, 0)
    assert site.retain().rows_expired == dropped


def test_a_server_that_agrees_ends_the_doubt_immediately(site: RetentionSite) -> None:
    """A commit in the future is the bad witness; without a server, it takes a week of commits."""
    commit_on(site, -40, WRONG, 0)
    assert site.retain(dry_run=True).rows_expired == 0
    hear(site, "collect.example", 0, 0)
    assert site.retain().rows_expired == 1


@pytest.mark.parametrize(
    ("host", "seen"), [("127.0.0.1", 0), ("localhost", 0), ("[::1]", 0), ("collect.example", -8), ("late.example", 9)]
)
def test_a_server_on_this_machine_or_heard_at_another_time_confirms_nothing(
    site: RetentionSite, host: str, seen: int
) -> None:
    commit_on(site, -40, WRONG, 0)
    hear(site, host, seen, seen)
    assert site.retain().rows_expired == 0


def test_what_a_server_said_under_a_wrong_clock_is_void_once_the_clock_is_set(site: RetentionSite) -> None:
    commit_on(site, *range(-40, 1, 5))
    hear(site, "collect.example", WRONG, 0)
    assert site.retain().rows_expired == 2


# Files


def test_a_wrong_clock_is_not_trusted_after_a_week_if_files_disagree(site: RetentionSite) -> None:
    """A file server dates them, or the machine that lends the folder."""
    today = a_wrong_clock(site)
    for number, path in enumerate(sorted(site.data_files())):
        os.utime(path, (later(number % 8).timestamp(),) * 2)
    report = site.retain(later(today))
    assert report.rows_expired == 0
    assert "the newest file of the lake is from" in report.reasons[0]
    hear(site, "collect.example", today, today)
    assert site.retain(later(today)).rows_expired == 3, "a bad file clock does not outweigh commits and a server"


def test_files_from_a_long_break_show_that_the_clock_went_on(site: RetentionSite) -> None:
    """The machine was in use, and only HypAware was not; no week of commits has to pass."""
    commit_on(site, -300, 0)
    assert site.retain(dry_run=True).rows_expired == 0
    import_transcript(site, -900)
    import_transcript(site, -150)
    assert site.retain().rows_expired == 1


# What is recorded


def test_the_newest_answer_of_a_server_is_kept(home: Home) -> None:
    with closing(open_home(home).store) as store:
        first = ServerClock("a.example", NOW, NOW)
        for clock in (first, ServerClock("a.example", NOW + timedelta(minutes=9), NOW + timedelta(minutes=9))):
            record_server_clock(store, clock)
        assert list_server_clocks(store) == [first], "nothing new within the hour"
        moved = ServerClock("a.example", NOW + timedelta(days=30), NOW + timedelta(minutes=20))
        record_server_clock(store, moved)
        other = ServerClock("b.example", NOW, NOW)
        record_server_clock(store, other)
        assert list_server_clocks(store) == [moved, other]
        set_back = replace(moved, seen_at=NOW, date=NOW)
        record_server_clock(store, set_back)
        assert list_server_clocks(store) == [set_back, other]


def test_a_delivery_records_the_clock_of_its_server(site: RetentionSite) -> None:
    """A server on loopback counts if it disagrees: a tunnel may lead to it."""
    commit_on(site, -3, -2, -1, 60)
    then = NOW.replace(microsecond=0) - timedelta(days=400)

    async def answer(_request: web.Request) -> web.Response:
        return web.json_response({}, status=202, headers={"Date": format_datetime(then.astimezone(UTC), usegmt=True)})

    async def deliver() -> None:
        async with served({"GET /v1/capabilities": answer, "POST /v1/ingest/{signal}": answer}) as url:
            site.sinks["team"] = SinkConfig("forward", "* * * * *", (DATASET,), {"url": url, "token": "hypb_x"})
            opened = open_home(site.home)
            with closing(opened.store):
                driver = Driver(opened, site.config, LakeRowReader(site.home), DeliveryOptions(0.0, None))
                await driver.deliver("team")

    asyncio.run(deliver())
    with closing(open_home(site.home).store) as store:
        (clock,) = list_server_clocks(store)
    assert (clock.host, clock.date) == ("127.0.0.1", then)
    assert clock.ahead >= timedelta(days=400)
