"""Retention and deliveries together: after kills and in any order, no row is dropped before every sink has it."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta

import pytest

from hypaware.faults import list_crash_points
from hypaware.home import Home
from hypaware.iceberg.fsync import fsync_all, roll_back_damaged
from hypaware.model.datasets import SEQ
from hypaware.state import flushes
from hypaware.state.home_opener import open_home
from hypaware.testing import fault_injection
from hypaware.testing.fault_injection import run_in_child
from hypaware.testing.folder_sink import FOLDER, FolderDestination
from tests.support.delivery_model import concurrent
from tests.support.light_home import DATASET
from tests.support.light_lake import read_lake
from tests.support.retention_cases import TODAY, RetentionSite, days_ago, later

POINTS = [point.name for point in list_crash_points() if point.name.startswith("maintain.retain.")]
ROUNDS = 40 * int(os.environ["HYP_SOAK"]) if "HYP_SOAK" in os.environ else 6


@pytest.fixture
def site(home: Home) -> Iterator[RetentionSite]:
    with fault_injection.register_kind(FOLDER):
        yield RetentionSite(home)


def test_retention_has_two_crash_points() -> None:
    assert POINTS == ["maintain.retain.after-commit", "maintain.retain.before-commit"]


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_run_drops_all_or_nothing_and_the_next_run_finishes(site: RetentionSite, point: str) -> None:
    messages = site.commit(40, 39, 0)
    assert not run_in_child(lambda: ignore(site.retain()), point)
    assert site.messages() in (messages, messages[2:])
    assert (site.retained_from is None) == (len(site.messages()) == 3)
    site.retain()
    assert (site.messages(), site.retained_from) == (messages[2:], str(days_ago(30)))


@pytest.mark.parametrize("point", POINTS)
def test_an_undelivered_drop_is_reported_correctly_after_a_kill(site: RetentionSite, point: str) -> None:
    """The drop is recorded before it happens; one that did not happen is not reported, and its hold continues."""
    destination = site.declare("team")
    messages = site.commit(40)
    site.retain()
    assert not run_in_child(lambda: ignore(site.retain(later(30))), point)
    (announced,) = site.drops()
    assert (announced.day, announced.rows, announced.sinks, announced.landed) == (days_ago(40), 1, ("team",), False)
    if point.endswith("before-commit"):
        site.deliver()
        site.retain(later(30))
        assert (destination.arrived(), list(site.drops())) == (messages, [])
    else:
        site.retain(later(30))
        assert [drop.landed for drop in site.drops()] == [True]
    assert site.messages() == []


def test_a_repeated_run_drops_and_reports_undelivered_rows_once(site: RetentionSite) -> None:
    site.declare("team")
    site.commit(40)
    site.retain()
    assert not run_in_child(lambda: ignore(site.retain(later(31))), "maintain.retain.before-commit")
    assert site.retain(later(31)).rows_expired == 1
    assert [(drop.rows, drop.landed) for drop in site.drops()] == [(1, True)]


class Life:
    """Commits, deliveries and retention in random order, with a record of the expected result."""

    def __init__(self, site: RetentionSite, seed: int) -> None:
        self.site, self.draw = site, random.Random(seed)
        self.destinations: dict[str, FolderDestination] = {
            name: site.declare(name) for name in ("quick", "slow")[: self.draw.randint(1, 2)]
        }
        self.committed: list[str] = []
        self.days = 0
        self.steps: list[str] = []

    def commit(self) -> None:
        ages = [self.draw.choice((0, 5, 25, 35, 60)) for _ in range(self.draw.randint(1, 6))]
        self.committed += self.site.commit(*ages, source=self.draw.choice(("claude", "codex")))

    def deliver(self) -> None:
        name = self.draw.choice(list(self.destinations))
        fault = self.draw.choice((None, None, "lose_answer", "cut"))
        if fault:
            self.destinations[name].faults.set(fault, 1)
        self.site.deliver(name, budget=self.draw.choice((1, None)))

    def deliver_killed(self) -> None:
        points = [
            each.name for each in list_crash_points() if each.name.startswith(("export.ship", "export.round", "state."))
        ]
        run_in_child(lambda: ignore(self.site.deliver()), f"{self.draw.choice(points)}:{self.draw.randint(1, 4)}")

    def retain(self) -> None:
        self.days = min(self.days + self.draw.randint(0, 3), 20)
        self.site.retain(later(self.days))
        self.check_floor()

    def retain_killed(self) -> None:
        point = self.draw.choice([*POINTS, "iceberg.fsync.before-fsync:2", "state.commit.after-commit"])
        run_in_child(lambda: ignore(self.site.retain(later(self.days))), point)
        self.recover()

    def both_at_once(self) -> None:
        with concurrently(lambda: ignore(self.site.retain(later(self.days)))):
            self.site.deliver()

    def recover(self) -> None:
        """Recover as an engine does at its start."""
        roll_back_damaged(self.site.home, {})
        fsync_all(self.site.home)

    def check_floor(self) -> None:
        with closing(open_home(self.site.home).store) as store, store.reading() as connection:
            highest = max(flushes.load_high_water(connection).get(DATASET, {}).values(), default=0)
        assert self.site.table.floor >= highest
        assert all(each[SEQ] <= highest for each in read_lake(self.site.home, DATASET))

    def run(self) -> None:
        steps = (self.commit, self.deliver, self.deliver_killed, self.retain, self.retain_killed, self.both_at_once)
        self.commit()
        for step in self.draw.choices(steps, (6, 5, 1, 5, 2, 1), k=self.draw.randint(6, 12)):
            self.steps.append(step.__name__)
            step()
        for destination in self.destinations.values():
            destination.faults.clear()
        self.recover()
        self.site.deliver()
        self.site.retain(later(self.days))

    def check(self) -> None:
        expected = Counter(self.committed)
        for name, destination in self.destinations.items():
            assert Counter(destination.arrived()) == expected, name
        first = TODAY + timedelta(days=self.days - 30)
        remaining = {each["message_id"] for each in read_lake(self.site.home, DATASET)}
        assert all(each["message_created_at"].date() >= first for each in read_lake(self.site.home, DATASET))
        assert remaining <= expected.keys()
        assert list(self.site.drops()) == [], "nothing was dropped undelivered"


@pytest.mark.hazard(39)
@pytest.mark.parametrize("seed", range(ROUNDS))
def test_in_any_order_every_row_reaches_every_sink_before_it_is_dropped(site: RetentionSite, seed: int) -> None:
    life = Life(site, seed)
    try:
        life.run()
        life.check()
    except BaseException as error:
        error.add_note(f"seed {seed}: {'; '.join(life.steps)}")
        raise


@contextmanager
def concurrently(work: object) -> Iterator[None]:
    assert callable(work)
    with concurrent(work, None):
        yield


def ignore(_result: object) -> None:
    return None
