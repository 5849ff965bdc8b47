"""Retention and deliveries together: after kills and in any order, no row is dropped before every sink has it."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta

import pytest

from hypaware.crash_points import all_points
from hypaware.export import configured
from hypaware.home import Home
from hypaware.lake.secure import secure_all, step_back_where_damaged
from hypaware.model.datasets import SEQ
from hypaware.opening import open_home
from hypaware.state import flushes
from hypaware.testing.destination import FOLDER, FolderDestination
from tests.delivery_world import concurrent
from tests.light_lake import read_lake
from tests.light_life import DATASET
from tests.lives import live
from tests.unit.maintain.retaining import TODAY, Keeper, days_ago, later

POINTS = [point.name for point in all_points() if point.name.startswith("maintain.retain.")]
ROUNDS = 40 * int(os.environ["HYP_SOAK"]) if "HYP_SOAK" in os.environ else 6


@pytest.fixture
def keeper(home: Home) -> Iterator[Keeper]:
    with configured.also(FOLDER):
        yield Keeper(home)


def test_retention_has_two_crash_points() -> None:
    assert POINTS == ["maintain.retain.after-commit", "maintain.retain.before-commit"]


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_run_drops_all_or_nothing_and_the_next_run_finishes(keeper: Keeper, point: str) -> None:
    messages = keeper.commit(40, 39, 0)
    assert not live(lambda: ignore(keeper.retain()), point)
    assert keeper.messages() in (messages, messages[2:])
    assert (keeper.retained_from is None) == (len(keeper.messages()) == 3)
    keeper.retain()
    assert (keeper.messages(), keeper.retained_from) == (messages[2:], str(days_ago(30)))


@pytest.mark.parametrize("point", POINTS)
def test_an_undelivered_drop_is_reported_correctly_after_a_kill(keeper: Keeper, point: str) -> None:
    """The drop is recorded before it happens; one that did not happen is not reported, and its hold continues."""
    destination = keeper.declare("team")
    messages = keeper.commit(40)
    keeper.retain()
    assert not live(lambda: ignore(keeper.retain(later(30))), point)
    (announced,) = keeper.drops()
    assert (announced.day, announced.rows, announced.sinks, announced.landed) == (days_ago(40), 1, ("team",), False)
    if point.endswith("before-commit"):
        keeper.deliver()
        keeper.retain(later(30))
        assert (destination.arrived(), list(keeper.drops())) == (messages, [])
    else:
        keeper.retain(later(30))
        assert [drop.landed for drop in keeper.drops()] == [True]
    assert keeper.messages() == []


def test_a_repeated_run_drops_and_reports_undelivered_rows_once(keeper: Keeper) -> None:
    keeper.declare("team")
    keeper.commit(40)
    keeper.retain()
    assert not live(lambda: ignore(keeper.retain(later(31))), "maintain.retain.before-commit")
    assert keeper.retain(later(31)).rows_expired == 1
    assert [(drop.rows, drop.landed) for drop in keeper.drops()] == [(1, True)]


class Life:
    """Commits, deliveries and retention in random order, with a record of the expected result."""

    def __init__(self, keeper: Keeper, seed: int) -> None:
        self.keeper, self.draw = keeper, random.Random(seed)
        self.destinations: dict[str, FolderDestination] = {
            name: keeper.declare(name) for name in ("quick", "slow")[: self.draw.randint(1, 2)]
        }
        self.committed: list[str] = []
        self.days = 0
        self.steps: list[str] = []

    def commit(self) -> None:
        ages = [self.draw.choice((0, 5, 25, 35, 60)) for _ in range(self.draw.randint(1, 6))]
        self.committed += self.keeper.commit(*ages, source=self.draw.choice(("claude", "codex")))

    def deliver(self) -> None:
        name = self.draw.choice(list(self.destinations))
        fault = self.draw.choice((None, None, "lose-answer", "cut"))
        if fault:
            self.destinations[name].set_fault(fault, 1)
        self.keeper.deliver(name, budget=self.draw.choice((1, None)))

    def deliver_killed(self) -> None:
        points = [each.name for each in all_points() if each.name.startswith(("export.ship", "export.round", "state."))]
        live(lambda: ignore(self.keeper.deliver()), f"{self.draw.choice(points)}:{self.draw.randint(1, 4)}")

    def retain(self) -> None:
        self.days = min(self.days + self.draw.randint(0, 3), 20)
        self.keeper.retain(later(self.days))
        self.check_floor()

    def retain_killed(self) -> None:
        point = self.draw.choice([*POINTS, "lake.secure.before-fsync:2", "state.commit.after-commit"])
        live(lambda: ignore(self.keeper.retain(later(self.days))), point)
        self.recover()

    def both_at_once(self) -> None:
        with concurrently(lambda: ignore(self.keeper.retain(later(self.days)))):
            self.keeper.deliver()

    def recover(self) -> None:
        """Recover as an engine does at its start."""
        step_back_where_damaged(self.keeper.home, {})
        secure_all(self.keeper.home)

    def check_floor(self) -> None:
        with closing(open_home(self.keeper.home).store) as store, store.reading() as connection:
            highest = max(flushes.high_water(connection).get(DATASET, {}).values(), default=0)
        assert self.keeper.table.floor >= highest
        assert all(each[SEQ] <= highest for each in read_lake(self.keeper.home, DATASET))

    def run(self) -> None:
        steps = (self.commit, self.deliver, self.deliver_killed, self.retain, self.retain_killed, self.both_at_once)
        self.commit()
        for step in self.draw.choices(steps, (6, 5, 1, 5, 2, 1), k=self.draw.randint(6, 12)):
            self.steps.append(step.__name__)
            step()
        for destination in self.destinations.values():
            destination.clear_faults()
        self.recover()
        self.keeper.deliver()
        self.keeper.retain(later(self.days))

    def check(self) -> None:
        expected = Counter(self.committed)
        for name, destination in self.destinations.items():
            assert Counter(destination.arrived()) == expected, name
        first = TODAY + timedelta(days=self.days - 30)
        remaining = {each["message_id"] for each in read_lake(self.keeper.home, DATASET)}
        assert all(each["message_created_at"].date() >= first for each in read_lake(self.keeper.home, DATASET))
        assert remaining <= expected.keys()
        assert list(self.keeper.drops()) == [], "nothing was dropped undelivered"


@pytest.mark.hazard(39)
@pytest.mark.parametrize("seed", range(ROUNDS))
def test_in_any_order_every_row_reaches_every_sink_before_it_is_dropped(keeper: Keeper, seed: int) -> None:
    life = Life(keeper, seed)
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
