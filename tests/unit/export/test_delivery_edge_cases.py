"""Deliveries with unusual events: shared destinations, holes, lost state, broken sinks."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from hypaware.config.schema import Config, SinkConfig
from hypaware.errors import HypError, Retryable
from hypaware.export import dead_letter_rows, destination_change, retry, round, sink_registry, stream_locks
from hypaware.export.delivery import DeliveryOptions, Driver, gather_all, replay_letter
from hypaware.export.round import _WorkAhead
from hypaware.export.sink import (
    Chunk,
    ChunkRefused,
    Destination,
    Payload,
    SinkSettings,
    StreamCoverage,
)
from hypaware.export.status import SinkReport
from hypaware.home import Home
from hypaware.state import dead_letters, flushes, mirror, store, streams
from hypaware.state.home_opener import OpenHome, open_home
from hypaware.state.streams import StreamKey
from hypaware.testing import fault_injection
from hypaware.testing.fault_injection import Faults, run_in_child
from hypaware.testing.folder_sink import FOLDER, FolderDestination, FolderSink
from hypaware.testing.sample_lake import DATASET, SampleLake, sample_row
from tests.support.processes import PATIENCE

SINK = "here"
KEY = StreamKey(SINK, DATASET, "claude")


@dataclass(frozen=True)
class DeliveryCase:
    """A home with a lake, fault injection, and destinations in folders."""

    folder: Path
    opened: OpenHome
    lake: SampleLake

    @property
    def home(self) -> Home:
        return self.opened.home

    @property
    def faults(self) -> Faults:
        return Faults(self.folder / "faults")

    def commit(self, count: int, start: int = 0, sources: tuple[str, ...] = ("claude",)) -> None:
        rows = [sample_row(number, sources[number % len(sources)]) for number in range(start, start + count)]
        self.lake.commit(self.opened, rows)

    def config(self, opaque: bool = False, **places: str) -> Config:
        sinks = {
            name: SinkConfig(
                FOLDER.name, "* * * * *", (DATASET,), {"folder": str(self.folder / place), "can_be_queried": not opaque}
            )
            for name, place in places.items()
        }
        return Config(sinks=sinks)

    def deliver(self, config: Config, *names: str, max_wait: float = 1.0) -> list[SinkReport]:
        driver = Driver(self.opened, config, self.lake, DeliveryOptions(max_wait))
        return asyncio.run(gather_all(map(driver.deliver, names or config.sinks)))

    def replay_all(self, config: Config) -> list[str]:
        with self.opened.store.reading() as connection:
            letters = dead_letters.list_letters(connection)
        driver = Driver(self.opened, config, self.lake, DeliveryOptions(1.0))
        return [asyncio.run(replay_letter(driver, letter.id))["status"] for letter in letters]

    def arrived(self, place: str) -> list[int]:
        found = FolderDestination(self.folder / place).arrived()
        return sorted(int(message.removeprefix("message-")) for message in found)

    def forget_deliveries(self) -> None:
        """Put the state into the condition after a loss of state and mirror: the delivery record is gone."""
        with self.opened.store.transaction() as connection:
            mirror.mark_unknown(connection, streams.list_streams(connection))
            known = store.load_identity(connection)
            assert known is not None
            store.save_identity(connection, known.next_incarnation(flushes.next_sequence(connection) - 1))

    def again(self) -> DeliveryCase:
        self.opened.store.close()
        return replace(self, opened=open_home(self.home))


@pytest.fixture
def case(tmp_path: Path) -> Iterator[DeliveryCase]:
    opened = open_home(Home(tmp_path / "home"))
    with fault_injection.register_kind(fault_injection.wrap_kind(FOLDER, tmp_path / "faults")):
        yield DeliveryCase(tmp_path, opened, SampleLake(tmp_path / "lake"))
    opened.store.close()


def _error(report: SinkReport) -> Mapping[str, Any]:
    return report.streams[0].error or {}


# Shared destinations


@pytest.mark.hazard(87)
@pytest.mark.parametrize("opaque", [False, True])
def test_a_second_sink_to_the_same_destination_is_refused_and_the_first_continues(
    case: DeliveryCase, opaque: bool
) -> None:
    case.commit(9)
    case.deliver(case.config(opaque, here="there"))
    case.commit(3, start=9)
    first, second = case.deliver(case.config(opaque, here="there", other="there"))
    assert (first.status, _error(second)["kind"]) == ("ok", "destination_taken")
    assert case.arrived("there") == list(range(12))


@pytest.mark.hazard(87)
def test_two_new_sinks_to_the_same_destination_deliver_each_row_once(case: DeliveryCase) -> None:
    case.commit(9)
    reports = case.deliver(case.config(opaque=True, here="there", other="there"))
    assert sorted(report.status for report in reports) == ["failed", "ok"]
    assert case.arrived("there") == list(range(9))


@pytest.mark.hazard(87)
def test_a_renamed_sink_keeps_its_watermark_if_its_old_name_points_elsewhere(case: DeliveryCase) -> None:
    case.commit(9)
    case.deliver(case.config(opaque=True, here="there"))
    case.commit(3, start=9)
    config = case.config(opaque=True, here="elsewhere", other="there")
    (moved,) = case.deliver(config, "other")
    assert sum(stream.rows for stream in moved.streams) == 3
    assert case.arrived("there") == list(range(12))
    (fresh,) = case.deliver(config, "here")
    assert (fresh.status, case.arrived("elsewhere")) == ("ok", list(range(12)))


@pytest.mark.hazard(26)
def test_a_stream_is_not_renamed_while_a_round_uses_its_old_name(case: DeliveryCase) -> None:
    case.commit(9)
    case.deliver(case.config(here="there"))
    case.commit(3, start=9)
    renamed = case.config(other="there")
    lock = stream_locks.try_lock_stream(case.home, KEY)
    assert lock is not None
    with lock:
        (report,) = case.deliver(renamed, max_wait=0.0)
        assert _error(report)["kind"] == "stream_busy"
        with case.opened.store.reading() as connection:
            assert [stream.key for stream in streams.list_streams(connection)] == [KEY]
    assert case.deliver(renamed)[0].status == "ok"
    assert case.arrived("there") == list(range(12))


# Holes


def _poisoned(case: DeliveryCase, config: Config, *numbers: int) -> None:
    case.faults.set("refuse", "\n".join(f"message-{number}" for number in numbers))
    assert "partial" in {report.status for report in case.deliver(config)}
    case.faults.clear()


@pytest.mark.hazard(27)
@pytest.mark.parametrize("poison", [(0, 1), (4,), (7, 8), (0, 4, 8)])
def test_resend_sends_refused_rows_again(case: DeliveryCase, poison: tuple[int, ...]) -> None:
    config = case.config(here="there")
    case.commit(9)
    _poisoned(case, config, *poison)
    destination_change.resend(case.home, config, case.opened.store, SINK)
    assert case.deliver(config)[0].status == "ok"
    assert case.arrived("there") == list(range(9))


@pytest.mark.hazard(27)
def test_refused_rows_at_the_end_of_an_earlier_incarnation_are_sent_again_after_a_lost_state(
    case: DeliveryCase,
) -> None:
    config = case.config(here="there")
    case.commit(9)
    _poisoned(case, config, 7, 8)
    with case.opened.store.transaction() as connection:
        store.save_identity(connection, case.opened.identity.next_incarnation(flushes.next_sequence(connection) - 1))
    case = case.again()
    case.commit(6, start=9)
    case.deliver(config)
    case.forget_deliveries()
    case = case.again()
    assert case.deliver(config)[0].status == "ok"
    assert case.replay_all(config) == []
    assert case.arrived("there") == list(range(15))
    case.opened.store.close()


def test_a_kill_while_holes_are_filled_is_recovered(case: DeliveryCase) -> None:
    config = case.config(here="there")
    case.commit(9)
    _poisoned(case, config, 1, 4)
    destination_change.resend(case.home, config, case.opened.store, SINK)
    assert not run_in_child(lambda: _discarded(case.deliver(config)), "export.ack.after-commit:1")
    assert case.deliver(config)[0].status == "ok"
    assert case.arrived("there") == list(range(9))


def test_a_large_hole_is_cut_into_chunks(case: DeliveryCase) -> None:
    config = case.config(here="there")
    case.commit(40)
    case.deliver(case.config(here="elsewhere"))
    destination_change.adopt(case.home, config, case.opened.store, SINK)
    case.commit(3, start=40)
    case.deliver(config)
    assert case.arrived("there") == [40, 41, 42]
    destination_change.resend(case.home, config, case.opened.store, SINK)
    case.deliver(config)
    chunks = FolderDestination(case.folder / "there").chunks()
    assert max(len(chunk["messages"]) for chunk in chunks) == 3
    assert case.arrived("there") == list(range(43))


@pytest.mark.hazard(71)
def test_rows_that_another_home_delivered_after_a_fork_do_not_count_as_ours(case: DeliveryCase) -> None:
    config = case.config(here="there")
    case.commit(6)
    case.deliver(config)
    with case.opened.store.transaction() as connection:
        store.save_identity(connection, case.opened.identity.next_incarnation(6))
    (other,) = [chunk for chunk in FolderDestination(case.folder / "there").chunks() if chunk["last"] == 6]
    stray = Chunk("stray", KEY, other["gateway"], other["incarnation"], 6, 12)
    sink = FolderSink(sink_registry.resolve_sink(case.home, config, case.opened.identity, SINK)[1])
    sink._store(stray, [])
    case = case.again()
    case.commit(6, start=6)
    destination_change.resend(case.home, config, case.opened.store, SINK)
    assert case.deliver(config)[0].status == "ok"
    assert case.arrived("there") == list(range(12))
    case.opened.store.close()


# Lost state


@pytest.mark.hazard(88)
def test_chunks_of_a_restored_intent_are_queried_before_they_are_split(case: DeliveryCase) -> None:
    config = case.config(here="there")
    case.commit(7)
    # The first intent holds one chunk, the second the other two.
    assert not run_in_child(lambda: _discarded(case.deliver(config)), "export.finish.after-commit:2")
    case.opened.store.close()
    for suffix in ("", "-wal", "-shm"):
        case.home.state.with_name(case.home.state.name + suffix).unlink(missing_ok=True)
    case = replace(case, opened=open_home(case.home))
    case.faults.set("refuse", "\n".join(f"message-{number}" for number in range(7)))
    assert case.deliver(config)[0].status == "ok"
    assert case.arrived("there") == list(range(7))
    case.opened.store.close()


def test_adopt_after_a_lost_state_sends_only_newer_rows(case: DeliveryCase) -> None:
    config = case.config(opaque=True, here="there")
    case.commit(6)
    case.deliver(config)
    case.forget_deliveries()
    case = case.again()
    case.commit(4, start=6)
    assert case.deliver(config)[0].status == "held"
    destination_change.adopt(case.home, config, case.opened.store, SINK)
    assert case.deliver(config)[0].status == "ok"
    assert case.arrived("there") == list(range(10))
    case.opened.store.close()


def test_a_stream_whose_rows_are_all_purged_continues_after_a_lost_state(case: DeliveryCase) -> None:
    config = case.config(opaque=True, here="there")
    case.commit(4, sources=("claude", "codex"))
    case.deliver(config)
    case.lake.purge(case.lake.message_ids())
    case.forget_deliveries()
    case = case.again()
    assert case.deliver(config)[0].status == "ok"
    case.commit(4, start=4, sources=("claude", "codex"))
    assert case.deliver(config)[0].status == "ok"
    assert case.arrived("there") == list(range(8))
    case.opened.store.close()


def test_a_dead_letter_that_is_sent_again_as_a_hole_is_dropped(case: DeliveryCase) -> None:
    config = case.config(here="there")
    case.commit(9)
    _poisoned(case, config, 3, 4)
    case.forget_deliveries()
    case = case.again()
    assert case.deliver(config)[0].status == "ok"
    assert case.replay_all(config) == []
    assert case.arrived("there") == list(range(9))
    case.opened.store.close()


# Broken sinks and cancellations


class _Breaking(FolderSink):
    """A sink that raises in the method named by its options."""

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self._breaks = settings.options["breaks"]
        self._break("make")

    def _break(self, where: str) -> None:
        if self._breaks == where:
            raise ZeroDivisionError(f"in {where}")
        if self._breaks == f"{where} cancels":
            raise asyncio.CancelledError

    async def open(self) -> Destination:
        self._break("open")
        return await super().open()

    async def coverage(self, stream: StreamKey, gateway_id: str, incarnation: str) -> StreamCoverage | None:
        self._break("coverage")
        return await super().coverage(stream, gateway_id, incarnation)

    def encode(self, rows: Any) -> Payload:
        self._break("encode")
        return super().encode(rows)

    async def ship(self, chunk: Chunk, payload: Payload, acked_to: int) -> int:
        self._break("ship")
        return await super().ship(chunk, payload, acked_to)

    async def close(self) -> None:
        self._break("close")


BREAKING = replace(FOLDER, name="breaking", make=_Breaking)


@pytest.mark.parametrize(
    "where", ["make", "open", "open cancels", "coverage", "encode", "ship", "ship cancels", "close"]
)
def test_a_sink_that_fails_anywhere_does_not_block_other_sinks(case: DeliveryCase, where: str) -> None:
    options = {"folder": str(case.folder / "broken"), "breaks": where}
    sound = case.config(here="there").sinks
    config = Config(sinks={"broken": SinkConfig(BREAKING.name, "* * * * *", (DATASET,), options), **sound})
    case.commit(9)
    with fault_injection.register_kind(BREAKING):
        sink_registry.sink_kinds()[FOLDER.name] = FOLDER
        broken, whole = case.deliver(config, max_wait=0.0)
    assert whole.status == "ok"
    assert case.arrived("there") == list(range(9))
    assert broken.status == ("ok" if where == "close" else "failed")
    # Each stream is reported once, with its error, wherever the sink failed.
    assert [(stream.key.source, bool(stream.error)) for stream in broken.streams] == [("claude", where != "close")]
    lock = stream_locks.try_lock_stream(case.home, replace(KEY, sink="broken"))
    assert lock is not None
    lock.close()


def test_a_failure_that_cannot_be_recorded_releases_the_lock(case: DeliveryCase) -> None:
    case.commit(9, sources=("claude", "codex"))
    config = case.config(here="there")
    failing = mock.patch.object(streams, "record_success", side_effect=Retryable("no room", kind="state_unavailable"))
    with (
        failing,
        mock.patch.object(streams, "record_failure", side_effect=Retryable("no room", kind="state_unavailable")),
    ):
        (report,) = case.deliver(config)
    assert {(stream.error or {})["kind"] for stream in report.streams} == {"state_unavailable"}
    for source in ("claude", "codex"):
        lock = stream_locks.try_lock_stream(case.home, replace(KEY, source=source))
        assert lock is not None
        lock.close()
    assert case.deliver(config)[0].status == "ok"
    assert case.arrived("there") == list(range(9))


@pytest.mark.hazard(29)
@pytest.mark.parametrize("requested", [1e18, float("inf"), 86_401.0])
def test_a_retry_after_of_years_is_cut_to_a_day(requested: float) -> None:
    stopped = [retry.DeliveryStopped("", "", delay) for delay in (retry.busy_delay(requested, 0), 86_400.0)]
    asked, longest = map(retry.retry_time, stopped)
    assert asked is not None
    assert longest is not None
    assert asked <= longest


@pytest.mark.hazard(29)
def test_a_cancellation_is_not_swallowed_while_work_ahead_is_closed() -> None:
    async def read_slowly() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        raise AssertionError("it waits forever")

    async def closes() -> None:
        ahead: _WorkAhead[None] = _WorkAhead()
        ahead._task = asyncio.create_task(read_slowly())
        await asyncio.sleep(0)
        await ahead.close()
        raise AssertionError("the cancellation was swallowed")

    async def cancelled() -> None:
        task = asyncio.create_task(closes())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(cancelled())


class _PackedWhileSending(FolderSink):
    """Sends the second of three chunks only after the third one was packed."""

    def __init__(self, settings: SinkSettings) -> None:
        super().__init__(settings)
        self._packed = 0
        self._third_packed = threading.Event()

    def pack(self, payload: Payload) -> Payload:
        self._packed += 1
        if self._packed == 3:
            self._third_packed.set()
        return super().pack(payload)

    async def ship(self, chunk: Chunk, payload: Payload, acked_to: int) -> int:
        if chunk.after == 3 and not await asyncio.to_thread(self._third_packed.wait, PATIENCE):
            raise ChunkRefused("the next chunk was not packed")
        return await super().ship(chunk, payload, acked_to)


def test_the_next_chunk_is_packed_while_the_last_one_is_sent(case: DeliveryCase) -> None:
    case.commit(9)
    with fault_injection.register_kind(replace(FOLDER, make=_PackedWhileSending)):
        (report,) = case.deliver(case.config(here="there"))
    assert (report.status, report.streams[0].chunks) == ("ok", 3)
    assert sorted(chunk["last"] for chunk in FolderDestination(case.folder / "there").chunks()) == [3, 6, 9]


@pytest.mark.parametrize("step", ["encode", "pack"])
def test_a_sink_that_fails_before_it_sends_is_reported_with_its_step(case: DeliveryCase, step: str) -> None:
    def fail(self: FolderSink, _given: object) -> Payload:
        raise KeyError("a defect of the plugin")

    broken = type("Broken", (FolderSink,), {step: fail})
    case.commit(3)
    with fault_injection.register_kind(replace(FOLDER, make=broken)):
        (report,) = case.deliver(case.config(here="there"))
    assert _error(report)["kind"] == "sink_failed"
    assert f"could not {step} 3 rows" in _error(report)["message"]
    assert case.arrived("there") == []


def test_a_waiting_replay_can_be_cancelled_and_notices_that_its_letter_was_dropped(case: DeliveryCase) -> None:
    config = case.config(here="there")
    case.commit(6)
    _poisoned(case, config, 2)
    with case.opened.store.reading() as connection:
        (letter,) = dead_letters.list_letters(connection)
    driver = Driver(case.opened, config, case.lake, DeliveryOptions(1.0))

    async def scene() -> None:
        lock = stream_locks.try_lock_stream(case.home, KEY)
        assert lock is not None
        with lock:
            waits = asyncio.create_task(replay_letter(driver, letter.id))
            await asyncio.sleep(0)
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
            late = asyncio.create_task(replay_letter(driver, letter.id))
            await asyncio.sleep(0)
            with case.opened.store.transaction() as connection:
                dead_letters.drop_letter(connection, letter.id)
        with pytest.raises(HypError, match="unknown dead letter"):
            await late

    asyncio.run(scene())
    assert Counter(case.arrived("there"))[2] == 0


def _discarded(_result: object) -> None:
    return None


@pytest.mark.hazard(88)
def test_a_chunk_known_not_to_have_arrived_is_not_held_if_the_destination_cannot_be_queried(case: DeliveryCase) -> None:
    """After a busy destination, or too many refusals in a round, the next round continues."""
    config = case.config(opaque=True, here="there")
    case.commit(9)
    case.faults.set("refuse", "\n".join(f"message-{number}" for number in range(6)))
    case.faults.set("busy", 1)
    with mock.patch.object(retry, "busy_delay", return_value=60.0):
        assert _error(case.deliver(config, max_wait=0.0)[0])["kind"] == "destination_busy"
    with mock.patch.object(round, "MAX_LETTERS_PER_ROUND", 2):
        statuses = [case.deliver(config)[0].status for _ in range(4)]
    assert "held" not in statuses
    assert case.arrived("there") == [6, 7, 8]
    case.faults.clear()
    assert case.replay_all(config) == ["delivered"] * 6
    assert case.arrived("there") == list(range(9))


@pytest.mark.hazard(88)
def test_an_unsent_chunk_becomes_uncertain_once_it_is_sent(case: DeliveryCase) -> None:
    config = case.config(opaque=True, here="there")
    case.commit(3)
    case.faults.set("busy", 1)
    with mock.patch.object(retry, "busy_delay", return_value=60.0):
        case.deliver(config, max_wait=0.0)
    assert not run_in_child(lambda: _discarded(case.deliver(config)), "export.ship.after-answer:1")
    case.faults.set("refuse", "message-1")
    assert case.deliver(config)[0].status == "held"
    assert case.arrived("there") == [0, 1, 2]


@pytest.mark.hazard(88)
def test_a_state_restored_from_before_an_unsent_chunk_was_sent_does_not_count_it_as_unsent(case: DeliveryCase) -> None:
    """The mirror, written before the chunk is sent, shows that the state is older."""
    config = case.config(opaque=True, here="there")
    case.commit(3)
    case.faults.set("busy", 1)
    with mock.patch.object(retry, "busy_delay", return_value=60.0):
        case.deliver(config, max_wait=0.0)
    case.opened.store.close()
    backup = shutil.copy(case.home.state, case.folder / "backup")
    case = replace(case, opened=open_home(case.home))
    assert not run_in_child(lambda: _discarded(case.deliver(config)), "export.ship.after-answer:1")
    case.opened.store.close()
    for suffix in ("-wal", "-shm"):
        case.home.state.with_name(case.home.state.name + suffix).unlink(missing_ok=True)
    shutil.copy(backup, case.home.state)
    case = replace(case, opened=open_home(case.home))
    case.faults.set("refuse", "message-1")
    assert case.deliver(config)[0].status == "held"
    assert case.arrived("there") == [0, 1, 2]
    case.opened.store.close()


@pytest.mark.hazard(27)
def test_two_sinks_that_shared_a_name_keep_separate_dead_letters_of_one_row(case: DeliveryCase) -> None:
    case.commit(6)
    _poisoned(case, case.config(here="there"), 2)
    config = case.config(other="there", here="elsewhere")
    case.deliver(config, "other")
    case.commit(1, start=6)
    _poisoned(case, config, 2)
    assert case.replay_all(config) == ["delivered", "delivered"]
    assert (case.arrived("there"), case.arrived("elsewhere")) == (list(range(7)), list(range(7)))


@pytest.mark.hazard(87)
def test_adopt_refuses_a_destination_of_another_sink(case: DeliveryCase) -> None:
    case.commit(6)
    case.deliver(case.config(opaque=True, here="there", other="elsewhere"))
    both = case.config(opaque=True, here="there", other="there")
    for change in (destination_change.adopt, destination_change.resend):
        with pytest.raises(HypError, match="the sink here also delivers to"):
            change(case.home, both, case.opened.store, "other")
    case.commit(3, start=6)
    case.deliver(both)
    assert case.arrived("there") == list(range(9))


@pytest.mark.hazard(87)
def test_a_renamed_sink_keeps_its_watermark_if_its_destination_is_unreachable_at_first(case: DeliveryCase) -> None:
    options = {"folder": str(case.folder / "there"), "can_be_queried": False, "breaks": "open"}
    broken = Config(sinks={"other": SinkConfig(BREAKING.name, "* * * * *", (DATASET,), options)})
    case.commit(6)
    case.deliver(case.config(opaque=True, here="there"))
    case.commit(3, start=6)
    with fault_injection.register_kind(BREAKING):
        assert case.deliver(broken, max_wait=0.0)[0].status == "failed"
    with fault_injection.register_kind(fault_injection.wrap_kind(FOLDER, case.folder / "faults")):
        assert case.deliver(case.config(opaque=True, other="there"))[0].status == "ok"
    assert case.arrived("there") == list(range(9))


@pytest.mark.hazard(17)
def test_an_intent_above_an_accepted_rollback_does_not_raise_the_watermark(case: DeliveryCase) -> None:
    config = case.config(here="there")
    case.commit(9)
    assert not run_in_child(lambda: _discarded(case.deliver(config)), "export.ack.after-commit:1")
    case.lake.purge([f"message-{number}" for number in range(4, 9)])
    with case.opened.store.transaction() as connection:
        flushes.lower_high_water(connection, DATASET, 4)
        streams.lower_watermarks(connection, DATASET, 4)
    assert case.deliver(config)[0].status == "ok"
    with case.opened.store.reading() as connection:
        (stream,) = streams.list_streams(connection)
    assert stream.watermark == 4
    case.commit(3, start=9)
    assert case.deliver(config)[0].status == "ok"
    assert case.arrived("there") == [0, 1, 2, 3, 9, 10, 11]


@pytest.mark.hazard(87)
def test_two_sinks_that_swap_names_keep_their_watermarks(case: DeliveryCase) -> None:
    case.commit(6)
    case.deliver(case.config(opaque=True, here="there", other="elsewhere"))
    case.commit(3, start=6)
    case.deliver(case.config(opaque=True, here="there", other="elsewhere"), "here")
    case.commit(3, start=9)
    swapped = case.config(opaque=True, here="elsewhere", other="there")
    case.deliver(swapped)
    assert [report.status for report in case.deliver(swapped)] == ["ok", "ok"]
    assert (case.arrived("there"), case.arrived("elsewhere")) == (list(range(12)), list(range(12)))


@pytest.mark.hazard(87)
def test_adopt_continues_from_the_watermark_of_a_removed_sink(case: DeliveryCase) -> None:
    case.commit(6)
    case.deliver(case.config(opaque=True, here="elsewhere"))
    case.commit(6, start=6)
    case.deliver(case.config(opaque=True, removed="there"))
    case.commit(3, start=12)
    config = case.config(opaque=True, here="there")
    assert case.deliver(config)[0].status == "held"
    destination_change.adopt(case.home, config, case.opened.store, SINK)
    assert case.deliver(config)[0].status == "ok"
    assert case.arrived("there") == list(range(15))


@pytest.mark.hazard(87)
def test_adopt_without_a_watermark_queries_the_destination_and_skips_no_row(case: DeliveryCase) -> None:
    case.commit(3)
    case.deliver(case.config(here="there"))
    case.commit(6, start=3)
    case.forget_deliveries()
    case = case.again()
    config = case.config(here="elsewhere")
    assert case.deliver(config)[0].status == "held"
    destination_change.adopt(case.home, config, case.opened.store, SINK)
    assert case.deliver(config)[0].status == "ok"
    assert set(case.arrived("elsewhere")) >= set(range(3, 9))
    case.opened.store.close()


@pytest.mark.hazard(44)
def test_a_dead_letter_contains_no_bytes_of_neighbouring_rows() -> None:
    """Arrow writes whole buffers: a slice would carry text of other rows into the state, out of reach of a purge."""
    page = pa.table({"content_text": [f"secret number {number}" for number in range(20)]})
    alone = dead_letter_rows.pack_rows(page.slice(3, 1))
    assert alone == dead_letter_rows.pack_rows(pa.table({"content_text": ["secret number 3"]}))
