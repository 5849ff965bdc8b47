"""Many exchanges share an fsync: they stay in order, are retried if the disk fails, and a bad one delays no other."""

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
    """A spool that fails or blocks on request."""

    def __init__(self) -> None:
        self.appended: list[tuple[str, bool, list[str]]] = []
        self.refusing: Callable[[str, Sequence[Row]], Exception | None] = lambda _dataset, _rows: None
        self.tries = 0
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def append_coerced(self, dataset: str, rows: Sequence[Row], *, deferrable: bool = False) -> int:
        self.tries += 1
        assert self.may_go_on.wait(60)
        if (error := self.refusing(dataset, rows)) is not None:
            raise error
        if rows:
            self.appended.append((dataset, deferrable, [row["id"] for row in rows]))
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


def test_queued_exchanges_are_stored_together_raw_rows_first() -> None:
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


def test_a_temporarily_full_disk_gets_each_row_once() -> None:
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


def test_closing_does_not_wait_for_a_full_disk_and_counts_the_loss() -> None:
    disk, lost, stored = Disk(), Lost(), list[str]()
    disk.refusing = lambda _dataset, _rows: Retryable("full")
    each = Storing(disk, lost)
    each.add(entry("a", stored))
    eventually(lambda: disk.tries > 2)
    for number in range(MOST_ENTRIES):
        each.add(entry(f"n-{number}", stored))
    blocked = threading.Thread(target=lambda: each.add(entry("one too many", stored)))
    blocked.start()
    each.stop_retrying()
    blocked.join(60)
    each.close()

    assert (stored, lost.count) == ([], MOST_ENTRIES + 2)


def test_an_attempt_that_began_before_closing_is_not_the_last() -> None:
    """The disk has room again just when the daemon stops; the waiting batch must not be given up."""
    disk, lost, stored = Disk(), Lost(), list[str]()
    failures = iter([Retryable("full")])

    def refusing(_dataset: str, _rows: Sequence[Row]) -> Exception | None:
        if (error := next(failures, None)) is not None:
            each.stop_retrying()
        return error

    disk.refusing = refusing
    each = Storing(disk, lost)
    each.add(entry("a", stored))
    eventually(lambda: stored or lost.count)
    each.close()
    assert (stored, lost.count) == (["a"], 0)


def test_an_exchange_with_a_permanent_error_is_lost_alone() -> None:
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
def test_the_queue_is_bounded_in_bytes() -> None:
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
writer = TakingDown(spool, Config())
for recording in wire.recordings(wire.SAMPLES / "claude-2.1.325/tools.ndjson.xz"):
    writer.write(recording)
writer.close()
spool.close()
"""


def test_after_a_kill_between_the_datasets_the_raw_exchange_exists_and_the_next_run_adds_the_messages(
    home: Home,
) -> None:
    Spool(home).close()
    assert was_killed(run(_KILLED, home, crash_at="capture.store.after-raw"))
    assert len(list(read_spooled_rows(home, RAW))) > 0
    assert list(read_spooled_rows(home, MESSAGES)) == []

    assert run(_KILLED, home).returncode == 0
    raw = [row["exchange_id"] for row in read_spooled_rows(home, RAW)]
    assert len(raw) > len(set(raw)), "duplicates have the same id, and the flush drops them"
    assert list(read_spooled_rows(home, MESSAGES))
