"""Many exchanges share an fsync: they stay in order, are retried if the disk fails, and a bad one delays no other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from hypaware.errors import Retryable
from hypaware.gateway import exchange_writer
from hypaware.gateway.exchange_writer import MAX_ENTRIES, ExchangeRows, SpoolWriter
from hypaware.home import Home
from hypaware.model.datasets import Row
from hypaware.spool.reader import read_spooled_rows
from hypaware.spool.writer import Spool
from tests.support.processes import eventually, run, was_killed

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


class LostCounter:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def exchange_rows(name: str, stored: list[str], size: int = 10) -> ExchangeRows:
    return ExchangeRows(
        {"id": name}, [{"id": f"{name}-own"}], [{"id": f"{name}-other"}], size, lambda: stored.append(name)
    )


def test_queued_exchanges_are_stored_together_raw_rows_first() -> None:
    disk, lost, stored = Disk(), LostCounter(), list[str]()
    disk.may_go_on.clear()
    writer = SpoolWriter(disk.append_coerced, lost, retry_seconds=(0.001,))
    writer.add(exchange_rows("a", stored))
    eventually(lambda: disk.tries == 1)
    for name in "bcd":
        writer.add(exchange_rows(name, stored))
    assert stored == []
    disk.may_go_on.set()
    writer.close()

    assert stored == list("abcd")
    assert disk.appended[3:] == [
        (RAW, False, ["b", "c", "d"]),
        (MESSAGES, False, ["b-own", "c-own", "d-own"]),
        (MESSAGES, True, ["b-other", "c-other", "d-other"]),
    ]
    assert lost.count == 0


def test_a_temporarily_full_disk_gets_each_row_once() -> None:
    disk, lost, stored = Disk(), LostCounter(), list[str]()
    failures = iter([True, True, False])
    disk.refusing = lambda dataset, _rows: Retryable("full") if dataset == MESSAGES and next(failures, False) else None
    writer = SpoolWriter(disk.append_coerced, lost, retry_seconds=(0.001,))
    writer.add(exchange_rows("b", stored))
    eventually(lambda: stored == ["b"])
    writer.close()
    assert [(dataset, ids) for dataset, _, ids in disk.appended] == [
        (RAW, ["b"]),
        (MESSAGES, ["b-own"]),
        (MESSAGES, ["b-other"]),
    ]


def test_closing_does_not_wait_for_a_full_disk_and_counts_the_loss() -> None:
    disk, lost, stored = Disk(), LostCounter(), list[str]()
    disk.refusing = lambda _dataset, _rows: Retryable("full")
    writer = SpoolWriter(disk.append_coerced, lost, retry_seconds=(0.001,))
    writer.add(exchange_rows("a", stored))
    eventually(lambda: disk.tries > 2)
    for number in range(MAX_ENTRIES):
        writer.add(exchange_rows(f"n-{number}", stored))
    blocked = threading.Thread(target=lambda: writer.add(exchange_rows("one too many", stored)))
    blocked.start()
    writer.stop_retrying()
    blocked.join(60)
    writer.close()

    assert (stored, lost.count) == ([], MAX_ENTRIES + 2)


def test_an_attempt_that_began_before_closing_is_not_the_last() -> None:
    """The disk has room again just when the daemon stops; the waiting batch must not be given up."""
    disk, lost, stored = Disk(), LostCounter(), list[str]()
    failures = iter([Retryable("full")])

    def refusing(_dataset: str, _rows: Sequence[Row]) -> Exception | None:
        if (error := next(failures, None)) is not None:
            writer.stop_retrying()
        return error

    disk.refusing = refusing
    writer = SpoolWriter(disk.append_coerced, lost, retry_seconds=(0.001,))
    writer.add(exchange_rows("a", stored))
    eventually(lambda: stored or lost.count)
    writer.close()
    assert (stored, lost.count) == (["a"], 0)


def test_an_exchange_with_a_permanent_error_is_lost_alone() -> None:
    disk, lost, stored = Disk(), LostCounter(), list[str]()
    disk.refusing = lambda _dataset, rows: ValueError("no") if any(row["id"] == "bad" for row in rows) else None
    disk.may_go_on.clear()
    writer = SpoolWriter(disk.append_coerced, lost, retry_seconds=(0.001,))
    writer.add(exchange_rows("first", stored))
    eventually(lambda: disk.tries == 1)
    for name in ("good", "bad", "better"):
        writer.add(exchange_rows(name, stored))
    disk.may_go_on.set()
    writer.close()

    assert (stored, lost.count) == (["first", "good", "better"], 1)


@pytest.mark.hazard(57)
def test_the_queue_is_bounded_in_bytes() -> None:
    disk, lost, stored = Disk(), LostCounter(), list[str]()
    disk.may_go_on.clear()
    writer = SpoolWriter(disk.append_coerced, lost, retry_seconds=(0.001,))
    writer.add(exchange_rows("first", stored))
    eventually(lambda: disk.tries == 1)
    writer.add(exchange_rows("large", stored, size=exchange_writer.MAX_BYTES))
    waiting = threading.Event()

    def add() -> None:
        waiting.set()
        writer.add(exchange_rows("small", stored))

    thread = threading.Thread(target=add)
    thread.start()
    assert waiting.wait(60)
    assert thread.is_alive()
    disk.may_go_on.set()
    thread.join(60)
    writer.close()
    assert stored == ["first", "large", "small"]


_KILLED = """
from hypaware.config import Config
from hypaware.gateway.exchange_writer import ExchangeWriter
from hypaware.home import Home
from hypaware.spool.writer import Spool
from tests.support import exchange_samples

spool = Spool(Home.from_environment())
writer = ExchangeWriter(spool, Config())
for recording in exchange_samples.read_recordings(exchange_samples.SAMPLES / "claude-2.1.325/tools.ndjson.xz"):
    writer.write(recording)
writer.close()
spool.close()
"""


def test_after_a_kill_between_the_datasets_the_raw_exchange_exists_and_the_next_run_adds_the_messages(
    home: Home,
) -> None:
    Spool(home).close()
    assert was_killed(run(_KILLED, home, crash_at="gateway.store.after-raw"))
    assert len(list(read_spooled_rows(home, RAW))) > 0
    assert list(read_spooled_rows(home, MESSAGES)) == []

    assert run(_KILLED, home).returncode == 0
    raw = [row["exchange_id"] for row in read_spooled_rows(home, RAW)]
    assert len(raw) > len(set(raw)), "duplicates have the same id, and the flush drops them"
    assert list(read_spooled_rows(home, MESSAGES))
