"""The order in which Spark and the lake are opened, with a fake Spark."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hypaware import config, errors
from hypaware.engine.lake_owner import LakeOwner, Wait, YieldToEngine
from hypaware.home import Home
from tests.support import processes


@dataclass
class FakeSpark:
    """A fake Spark that records its calls. Another process owns the lake while `taken_for` has entries."""

    calls: list[str]
    taken_for: list[float] = field(default_factory=list)
    alive: bool = True
    jvm_pid: int = 4242
    is_wanted: bool = False

    @property
    def spark(self) -> Any:
        return SimpleNamespace(version="stand-in")

    def make_active(self) -> None:
        """Do nothing: there is no JVM."""

    def own_lake(self, wait: Wait) -> None:
        for seconds in self.taken_for:
            wait(seconds, "")
        self.calls.append("lake")

    def close(self) -> None:
        self.calls.append("close")


class FakeJob:
    def __init__(self, home: Home) -> None:
        self.home = home
        self.config = config.load(home)
        self.notes: list[str] = []
        self.cancelled = threading.Event()

    @property
    def spark(self) -> Any:
        raise AssertionError("the test uses the owner, not the context")

    def progress(self, message: str, done: float | None = None, total: float | None = None, **facts: object) -> None:
        pass

    def emit(self, chunk: bytes) -> None:
        pass

    def note(self, message: str) -> None:
        self.notes.append(message)

    def check_cancelled(self) -> None:
        if self.cancelled.is_set():
            raise errors.Cancelled


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.run.mkdir(parents=True)
    return home


def opener_of(fake_spark: FakeSpark) -> Callable[[], FakeSpark]:
    def open_spark() -> FakeSpark:
        fake_spark.calls.append("spark")
        return fake_spark

    return open_spark


def test_the_lake_is_acquired_before_on_open_which_runs_once(home: Home) -> None:
    calls: list[str] = []
    owner = LakeOwner(home, opener_of(FakeSpark(calls)), lambda job: calls.append("on_open"))
    for _ in range(3):
        owner.spark(FakeJob(home))
        owner.recover(FakeJob(home))
    assert calls == ["spark", "lake", "on_open"]
    assert (owner.owns_lake, owner.jvm_pid) == (True, 4242)
    owner.close()
    owner.close()
    assert calls == ["spark", "lake", "on_open", "close"]
    assert (owner.owns_lake, owner.jvm_pid) == (False, None)
    assert not home.lake_owner.exists()


def test_side_files_of_the_catalog_are_removed_when_the_jvm_ends(home: Home) -> None:
    """Otherwise SQLite would write to these files, even in a dry run."""
    home.lake.mkdir()
    left_open = """
import os, sys, sqlite3
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA journal_mode=WAL")
db.execute("CREATE TABLE tables (name)")
db.execute("INSERT INTO tables VALUES ('one')")
os._exit(0)
"""
    processes.run(left_open, home, home.catalog)
    assert len(list(home.lake.iterdir())) == 3
    owner = LakeOwner(home, opener_of(FakeSpark([])), lambda job: None)
    owner.spark(FakeJob(home))
    owner.close()
    assert list(home.lake.iterdir()) == [home.catalog]
    with closing(sqlite3.connect(home.catalog)) as db:
        assert db.execute("SELECT name FROM tables").fetchall() == [("one",)]


def test_a_failed_on_open_is_repeated_for_the_next_job(home: Home) -> None:
    """A job must not read the lake before an unfinished flush is recovered."""
    tries: list[int] = []

    def on_open(job: object) -> None:
        tries.append(len(tries))
        if len(tries) == 1:
            raise errors.Retryable("disk full")

    owner = LakeOwner(home, opener_of(FakeSpark([])), on_open)
    owner.spark(FakeJob(home))
    with pytest.raises(errors.Retryable, match="disk full"):
        owner.recover(FakeJob(home))
    owner.recover(FakeJob(home))
    owner.recover(FakeJob(home))
    assert tries == [0, 1]


def test_jobs_wait_for_on_open_and_can_be_cancelled(home: Home) -> None:
    entered, leave = threading.Event(), threading.Event()
    order: list[str] = []

    def on_open(job: object) -> None:
        entered.set()
        leave.wait()
        order.append("settled")

    def use(job: FakeJob, name: str) -> None:
        owner.spark(job)
        owner.recover(job)
        order.append(name)

    owner = LakeOwner(home, opener_of(FakeSpark([])), on_open)
    first, second, third = (FakeJob(home) for _ in range(3))
    with ThreadPoolExecutor() as pool:
        opens = pool.submit(use, first, "first")
        entered.wait()
        waits = pool.submit(use, second, "second")
        gives_up = pool.submit(use, third, "third")
        third.cancelled.set()
        with pytest.raises(errors.Cancelled):
            gives_up.result()
        leave.set()
        opens.result()
        waits.result()
    assert order[0] == "settled"
    assert sorted(order[1:]) == ["first", "second"]


def test_a_long_wait_for_the_lake_is_reported_once_with_its_owner(home: Home) -> None:
    home.lake_owner.write_text(json.dumps({"pid": 777, "jvm_pid": 778}))
    job = FakeJob(home)
    owner = LakeOwner(home, opener_of(FakeSpark([], taken_for=[0.0, 0.5, 1.0, 1.5, 2.0])), lambda job: None)
    owner.spark(job)
    assert job.notes == ["waiting for process 777, which is using the lake"]
    assert json.loads(home.lake_owner.read_bytes())["jvm_pid"] == 4242, "this process owns the lake now"


@pytest.mark.parametrize("content", [None, b"", b"[]", b'{"pid"', b"{}"])
def test_an_unknown_owner_of_the_lake_is_tolerated(home: Home, content: bytes | None) -> None:
    if content is not None:
        home.lake_owner.write_bytes(content)
    job = FakeJob(home)
    LakeOwner(home, opener_of(FakeSpark([], taken_for=[0.0, 1.0])), lambda job: None).spark(job)
    assert job.notes == ["waiting for another process, which is using the lake"]


def test_a_short_wait_is_not_reported(home: Home) -> None:
    job = FakeJob(home)
    LakeOwner(home, opener_of(FakeSpark([], taken_for=[0.0, 0.9])), lambda job: None).spark(job)
    assert job.notes == []


def test_a_job_that_waits_for_the_lake_can_be_cancelled_and_keeps_the_session(
    home: Home,
) -> None:
    calls: list[str] = []
    fake_spark = FakeSpark(calls, taken_for=[0.0])
    owner = LakeOwner(home, opener_of(fake_spark), lambda job: None)
    job = FakeJob(home)
    job.cancelled.set()
    with pytest.raises(errors.Cancelled):
        owner.spark(job)
    assert not owner.owns_lake
    owner.spark(FakeJob(home))
    assert calls == ["spark", "lake"]


def test_a_job_yields_to_an_engine_only_while_waiting(home: Home) -> None:
    free = LakeOwner(home, opener_of(FakeSpark([])), lambda job: None, should_yield=lambda: True)
    free.spark(FakeJob(home))
    taken = LakeOwner(home, opener_of(FakeSpark([], taken_for=[0.0])), lambda job: None, should_yield=lambda: True)
    with pytest.raises(YieldToEngine):
        taken.spark(FakeJob(home))


def test_every_job_after_the_death_of_the_jvm_fails(home: Home) -> None:
    fake_spark = FakeSpark([])
    owner = LakeOwner(home, opener_of(fake_spark), lambda job: None)
    owner.spark(FakeJob(home))
    fake_spark.alive = False
    assert owner.lost
    with pytest.raises(errors.Retryable) as caught:
        owner.spark(FakeJob(home))
    assert caught.value.kind == "engine_died"
