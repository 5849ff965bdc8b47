"""Many exchanges to an fsync: in order, tried again where the disk fails, and one bad one holds nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from hypaware.capture import storing
from hypaware.capture.storing import MOST_ENTRIES, Entry, Storing
from hypaware.errors import Retryable
from hypaware.home import Home
from hypaware.model.datasets import Row
from hypaware.spool.reader import read_spooled_rows
from hypaware.spool.writer import Spool
from tests.processes import eventually, run, was_killed

RAW, MESSAGES = "ai_gateway_exchanges", "ai_gateway_messages"


class Disk:
    """A spool that says no when it is told to, and can be made to wait."""

    def __init__(self) -> None:
        self.appended: list[tuple[str, bool, list[str]]] = []
        self.refusing: Callable[[str, Sequence[Row]], Exception | None] = lambda _dataset, _rows: None
        self.tries = 0
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def append_coerced(self, dataset: str, rows: Sequence[Row], *, waits: bool = False) -> int:
        self.tries += 1
        assert self.may_go_on.wait(60)
        if (error := self.refusing(dataset, rows)) is not None:
            raise error
        if rows:
            self.appended.append((dataset, waits, [row["id"] for row in rows]))
        return len(rows)


class Lost:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, exchanges: int) -> None:
        self.count += exchanges


def entry(name: str, stored: list[str], size: int = 10) -> Entry:
    return Entry({"id": name}, [{"id": f"{name}-own"}], [{"id": f"{name}-other"}], size, lambda: stored.append(name))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing, "_SECONDS_BETWEEN_TRIES", (0.001,))


def test_what_waits_goes_together_the_raw_exchanges_first() -> None:
    disk, lost, stored = Disk(), Lost(), list[str]()
    disk.may_go_on.clear()
    each = Storing(disk, lost)
    each.add(entry("a", stored))
    eventually(lambda: disk.tries == 1)
    for name in "bcd":
        each.add(entry(name, stored))
    assert stored == []
    disk.may_go_on.set()
    each.close()

    assert stored == list("abcd")
    assert disk.appended[3:] == [
        (RAW, False, ["b", "c", "d"]),
        (MESSAGES, False, ["b-own", "c-own", "d-own"]),
        (MESSAGES, True, ["b-other", "c-other", "d-other"]),
    ]
    assert lost.count == 0


def test_a_disk_that_is_full_for_a_while_gets_each_row_once() -> None:
    disk, lost, stored = Disk(), Lost(), list[str]()
    failures = iter([True, True, False])
    disk.refusing = lambda dataset, _rows: Retryable("full") if dataset == MESSAGES and next(failures, False) else None
    each = Storing(disk, lost)
    each.add(entry("b", stored))
    eventually(lambda: stored == ["b"])
    each.close()
    assert [(dataset, ids) for dataset, _, ids in disk.appended] == [
        (RAW, ["b"]),
        (MESSAGES, ["b-own"]),
        (MESSAGES, ["b-other"]),
    ]


def test_at_the_end_a_full_disk_is_not_waited_for_and_the_loss_is_counted() -> None:
    disk, lost, stored = Disk(), Lost(), list[str]()
    disk.refusing = lambda _dataset, _rows: Retryable("full")
    each = Storing(disk, lost)
    each.add(entry("a", stored))
    eventually(lambda: disk.tries > 2)
    for number in range(MOST_ENTRIES):
        each.add(entry(f"n-{number}", stored))
    blocked = threading.Thread(target=lambda: each.add(entry("one too many", stored)))
    blocked.start()
    each.hurry()
    blocked.join(60)
    each.close()

    assert (stored, lost.count) == ([], MOST_ENTRIES + 2)


def test_a_try_that_had_begun_before_the_end_is_not_the_last_one() -> None:
    """A disk that has room again: what waited for that was given up, because the daemon stopped in this moment."""
    disk, lost, stored = Disk(), Lost(), list[str]()
    failures = iter([Retryable("full")])

    def refusing(_dataset: str, _rows: Sequence[Row]) -> Exception | None:
        if (error := next(failures, None)) is not None:
            each.hurry()
        return error

    disk.refusing = refusing
    each = Storing(disk, lost)
    each.add(entry("a", stored))
    eventually(lambda: stored or lost.count)
    each.close()
    assert (stored, lost.count) == (["a"], 0)


def test_one_that_cannot_be_stored_for_a_reason_of_its_own_is_lost_alone() -> None:
    disk, lost, stored = Disk(), Lost(), list[str]()
    disk.refusing = lambda _dataset, rows: ValueError("no") if any(row["id"] == "bad" for row in rows) else None
    disk.may_go_on.clear()
    each = Storing(disk, lost)
    each.add(entry("first", stored))
    eventually(lambda: disk.tries == 1)
    for name in ("good", "bad", "better"):
        each.add(entry(name, stored))
    disk.may_go_on.set()
    each.close()

    assert (stored, lost.count) == (["first", "good", "better"], 1)


@pytest.mark.hazard(57)
def test_what_waits_is_bounded_in_bytes() -> None:
    disk, lost, stored = Disk(), Lost(), list[str]()
    disk.may_go_on.clear()
    each = Storing(disk, lost)
    each.add(entry("first", stored))
    eventually(lambda: disk.tries == 1)
    each.add(entry("large", stored, size=storing.MOST_BYTES))
    waiting = threading.Event()

    def add() -> None:
        waiting.set()
        each.add(entry("small", stored))

    thread = threading.Thread(target=add)
    thread.start()
    assert waiting.wait(60)
    assert thread.is_alive()
    disk.may_go_on.set()
    thread.join(60)
    each.close()
    assert stored == ["first", "large", "small"]


_KILLED = """
import json, sys
from hypaware.capture.taking_down import TakingDown
from hypaware.config import Config
from hypaware.home import Home
from hypaware.spool.writer import Spool
from tests import wire

spool = Spool(Home.from_environment())
keep = TakingDown(spool, Config())
for recording in wire.recordings(wire.SAMPLES / "claude-2.1.325/tools.ndjson.xz"):
    keep(recording)
keep.close()
spool.close()
"""


def test_killed_between_the_two_datasets_the_raw_exchange_is_there_and_the_next_run_has_each_part(home: Home) -> None:
    Spool(home).close()
    assert was_killed(run(_KILLED, home, crash_at="capture.store.after-raw"))
    assert len(list(read_spooled_rows(home, RAW))) > 0
    assert list(read_spooled_rows(home, MESSAGES)) == []

    assert run(_KILLED, home).returncode == 0
    raw = [row["exchange_id"] for row in read_spooled_rows(home, RAW)]
    assert len(raw) > len(set(raw)), "what comes twice has the same id, and the flush drops it"
    assert list(read_spooled_rows(home, MESSAGES))
