"""Many exchanges share an fsync: they stay in order, are retried if the disk fails, and a bad one delays no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from hypaware.config import Config
from hypaware.errors import Retryable
from hypaware.gateway.exchange import RecordedExchange
from hypaware.gateway.exchange_writer import MAX_BYTES, MAX_ENTRIES, ExchangeWriter
from hypaware.home import Home
from hypaware.model.datasets import Row
from hypaware.spool.reader import read_spooled_rows
from hypaware.spool.writer import Spool
from tests.support import exchange_samples
from tests.support.processes import run, was_killed

RAW, MESSAGES = "ai_gateway_exchanges", "ai_gateway_messages"


class RefusingSpool(Spool):
    """A spool that fails on request."""

    def __init__(self, home: Home) -> None:
        super().__init__(home)
        self.appended: list[tuple[str, bool, list[str]]] = []
        self.refusing: Callable[[str, Sequence[Row]], Exception | None] = lambda _dataset, _rows: None

    def append_coerced(self, dataset: str, rows: Sequence[Row], *, deferrable: bool = False) -> int:
        if (error := self.refusing(dataset, rows)) is not None:
            raise error
        if rows:
            ids = [row["exchange_id"] if dataset == RAW else row["part_id"] for row in rows]
            self.appended.append((dataset, deferrable, ids))
        return super().append_coerced(dataset, rows, deferrable=deferrable)


@contextmanager
def open_writer(home: Home) -> Iterator[tuple[RefusingSpool, ExchangeWriter]]:
    spool = RefusingSpool(home)
    with spool:
        writer = ExchangeWriter(spool, Config())
        yield spool, writer
        spool.refusing = lambda _dataset, _rows: None
        writer.close()


def question(name: str, words: str = "hello") -> RecordedExchange:
    """A question of a session of its own."""
    body = {"messages": [{"role": "user", "content": words}], "metadata": {"user_id": f"user_session_{name:->12}"}}
    return exchange_samples.to_recording(
        exchange_samples.build_exchange("/v1/messages", body, "", client_name="claude", exchange_id=name)
    )


def test_written_exchanges_are_stored_together_raw_rows_first(home: Home) -> None:
    natives = exchange_samples.read_recordings(next(iter(sorted(exchange_samples.SAMPLES.glob("codex-*/*.xz")))))[:3]
    found = [question("a"), *natives, question("b")]
    with open_writer(home) as (spool, writer):
        for recording in found:
            writer.write(recording)
        assert (spool.appended, writer.counts.recorded) == ([], 0)
        writer.store()

        assert [(dataset, deferrable) for dataset, deferrable, _ in spool.appended] == [
            (RAW, False),
            (MESSAGES, False),
            (MESSAGES, True),
        ]
        assert spool.appended[0][2] == [each.exchange_id for each in found]
        assert (writer.counts.recorded, writer.counts.lost) == (len(found), 0)


def test_a_temporarily_full_disk_gets_each_row_once(home: Home) -> None:
    with open_writer(home) as (spool, writer):
        spool.refusing = lambda dataset, _rows: Retryable("full") if dataset == MESSAGES else None
        writer.write(question("a"))
        for _ in range(2):
            with pytest.raises(Retryable):
                writer.store()
        assert writer.counts.recorded == 0
        spool.refusing = lambda _dataset, _rows: None
        writer.write(question("b"))
        assert writer.counts.recorded == 1, "the rows that wait are stored before another exchange is accepted"
        writer.store()

        stored = [each for _, _, ids in spool.appended for each in ids]
        assert [ids for dataset, _, ids in spool.appended if dataset == RAW] == [["a"], ["b"]]
        assert len(stored) == len(set(stored)) == 6
        assert (writer.counts.recorded, writer.counts.lost) == (2, 0)


def test_closing_with_a_full_disk_counts_the_loss(home: Home) -> None:
    with open_writer(home) as (spool, writer):
        spool.refusing = lambda _dataset, _rows: Retryable("full")
        for number in range(3):
            writer.write(question(f"n-{number}"))
        writer.close()

    assert (writer.counts.recorded, writer.counts.lost) == (0, 3)


def test_an_exchange_with_a_permanent_error_is_lost_alone(home: Home) -> None:
    with open_writer(home) as (spool, writer):
        spool.refusing = lambda _dataset, rows: (
            ValueError("no") if any(row.get("exchange_id") == "bad" for row in rows) else None
        )
        for name in ("good", "bad", "better"):
            writer.write(question(name))
        writer.store()

    assert [ids for dataset, _, ids in spool.appended if dataset == RAW] == [["good"], ["better"]]
    assert (writer.counts.recorded, writer.counts.lost) == (2, 1)


def test_the_next_request_of_a_lost_exchange_produces_its_messages(home: Home) -> None:
    with open_writer(home) as (spool, writer):
        spool.refusing = lambda _dataset, _rows: ValueError("no")
        writer.write(question("a"))
        writer.store()
        assert writer.counts.lost == 1
        spool.refusing = lambda _dataset, _rows: None
        writer.write(question("a"))

    assert [row["content_text"] for row in read_spooled_rows(home, MESSAGES) if row["role"] == "user"] == ["hello"]


@pytest.mark.hazard(57)
def test_the_rows_that_wait_are_bounded_in_number_and_bytes(home: Home) -> None:
    with open_writer(home) as (spool, writer):
        for number in range(MAX_ENTRIES):
            writer.write(question(f"n-{number}"))
        assert spool.appended == []
        spool.refusing = lambda _dataset, _rows: Retryable("full")
        with pytest.raises(Retryable):
            writer.write(question("one too many"))
        spool.refusing = lambda _dataset, _rows: None
        writer.write(question("large", "word " * (MAX_BYTES // 5)))
        assert writer.counts.recorded == MAX_ENTRIES
        writer.write(question("small"))
        assert writer.counts.recorded == MAX_ENTRIES + 1

    assert (writer.counts.recorded, writer.counts.lost) == (MAX_ENTRIES + 2, 0)


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
