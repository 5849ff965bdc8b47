"""What a delivery does where something else than a kill or a lost answer comes in between."""

from __future__ import annotations

import asyncio
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
from hypaware.export import binding, configured, letters, locks, shipping, waiting
from hypaware.export import replay as replaying
from hypaware.export.driver import Driver, Terms
from hypaware.export.payload import Payload
from hypaware.export.report import SinkReport
from hypaware.export.round import _Ahead
from hypaware.export.rows import Page
from hypaware.export.sink import Chunk, Delivered, Destination, Limits, Sink
from hypaware.home import Home
from hypaware.opening import OpenHome, open_home
from hypaware.state import dead_letters, deliveries, flushes, streams, whose
from hypaware.state.stream_key import StreamKey
from hypaware.testing import between
from hypaware.testing.between import Between
from hypaware.testing.destination import FOLDER, FolderDestination, FolderSink
from hypaware.testing.lives import live
from hypaware.testing.sample_lake import DATASET, SampleLake, sample_row

SINK = "here"
KEY = StreamKey(SINK, DATASET, "claude")


@dataclass(frozen=True)
class Desk:
    """A home with a lake, faults in between, and destinations in folders."""

    folder: Path
    opened: OpenHome
    lake: SampleLake

    @property
    def home(self) -> Home:
        return self.opened.home

    @property
    def between(self) -> Between:
        return Between(self.folder / "faults")

    def commit(self, count: int, start: int = 0, sources: tuple[str, ...] = ("claude",)) -> None:
        rows = [sample_row(number, sources[number % len(sources)]) for number in range(start, start + count)]
        self.lake.commit(self.opened, rows)

    def config(self, mute: bool = False, **places: str) -> Config:
        sinks = {
            name: SinkConfig(
                FOLDER.name, "* * * * *", (DATASET,), {"folder": str(self.folder / place), "can_be_asked": not mute}
            )
            for name, place in places.items()
        }
        return Config(sinks=sinks)

    def deliver(self, config: Config, *names: str, max_wait: float = 1.0) -> list[SinkReport]:
        driver = Driver(self.opened, config, self.lake, Terms(max_wait))
        return asyncio.run(driver.deliver(names or tuple(config.sinks)))

    def replay_all(self, config: Config) -> list[str]:
        with self.opened.store.reading() as connection:
            letters = dead_letters.all_letters(connection)
        driver = Driver(self.opened, config, self.lake, Terms(1.0))
        return [asyncio.run(replaying.replay(driver, letter.id))["status"] for letter in letters]

    def arrived(self, place: str) -> list[int]:
        found = FolderDestination(self.folder / place).arrived()
        return sorted(int(message.removeprefix("message-")) for message in found)

    def forget_deliveries(self) -> None:
        """As after the loss of state and side file: nobody remembers what was sent."""
        with self.opened.store.transaction() as connection:
            deliveries.distrust(connection)
            known = whose.load(connection)
            assert known is not None
            whose.save(connection, known.next_incarnation(flushes.next_seq(connection) - 1))

    def again(self) -> Desk:
        self.opened.store.close()
        return replace(self, opened=open_home(self.home))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    opened = open_home(Home(tmp_path / "home"))
    with configured.also(between.wrapped(FOLDER, tmp_path / "faults")):
        yield Desk(tmp_path, opened, SampleLake(tmp_path / "lake"))
    opened.store.close()


def _error(report: SinkReport) -> Mapping[str, Any]:
    return report.streams[0].error or {}


# Who delivers where


@pytest.mark.hazard(87)
@pytest.mark.parametrize("mute", [False, True])
def test_a_second_sink_to_the_same_destination_is_refused_and_the_first_goes_on(desk: Desk, mute: bool) -> None:
    desk.commit(9)
    desk.deliver(desk.config(mute, here="there"))
    desk.commit(3, start=9)
    first, second = desk.deliver(desk.config(mute, here="there", other="there"))
    assert (first.status, _error(second)["kind"]) == ("ok", "destination_taken")
    assert desk.arrived("there") == list(range(12))


@pytest.mark.hazard(87)
def test_two_new_sinks_to_the_same_destination_deliver_each_row_once(desk: Desk) -> None:
    desk.commit(9)
    reports = desk.deliver(desk.config(mute=True, here="there", other="there"))
    assert sorted(report.status for report in reports) == ["failed", "ok"]
    assert desk.arrived("there") == list(range(9))


@pytest.mark.hazard(87)
def test_a_sink_whose_old_name_points_elsewhere_now_keeps_its_watermark(desk: Desk) -> None:
    desk.commit(9)
    desk.deliver(desk.config(mute=True, here="there"))
    desk.commit(3, start=9)
    config = desk.config(mute=True, here="elsewhere", other="there")
    (moved,) = desk.deliver(config, "other")
    assert sum(stream.rows for stream in moved.streams) == 3
    assert desk.arrived("there") == list(range(12))
    (fresh,) = desk.deliver(config, "here")
    assert (fresh.status, desk.arrived("elsewhere")) == ("ok", list(range(12)))


@pytest.mark.hazard(26)
def test_a_stream_is_not_renamed_under_a_round_of_its_old_name(desk: Desk) -> None:
    desk.commit(9)
    desk.deliver(desk.config(here="there"))
    desk.commit(3, start=9)
    renamed = desk.config(other="there")
    lock = locks.try_lock(desk.home, KEY)
    assert lock is not None
    with lock:
        (report,) = desk.deliver(renamed, max_wait=0.0)
        assert _error(report)["kind"] == "stream_busy"
        with desk.opened.store.reading() as connection:
            assert [stream.key for stream in streams.all_streams(connection)] == [KEY]
    assert desk.deliver(renamed)[0].status == "ok"
    assert desk.arrived("there") == list(range(12))


# Holes


def _poisoned(desk: Desk, config: Config, *numbers: int) -> None:
    desk.between.set("refuse", "\n".join(f"message-{number}" for number in numbers))
    assert "partial" in {report.status for report in desk.deliver(config)}
    desk.between.clear()


@pytest.mark.hazard(27)
@pytest.mark.parametrize("poison", [(0, 1), (4,), (7, 8), (0, 4, 8)])
def test_refused_rows_go_again_by_resend_wherever_they_lie(desk: Desk, poison: tuple[int, ...]) -> None:
    config = desk.config(here="there")
    desk.commit(9)
    _poisoned(desk, config, *poison)
    binding.resend(desk.home, config, desk.opened.store, SINK)
    assert desk.deliver(config)[0].status == "ok"
    assert desk.arrived("there") == list(range(9))


@pytest.mark.hazard(27)
def test_refused_rows_at_the_end_of_an_earlier_life_go_again_when_all_memory_is_lost(desk: Desk) -> None:
    config = desk.config(here="there")
    desk.commit(9)
    _poisoned(desk, config, 7, 8)
    with desk.opened.store.transaction() as connection:
        whose.save(connection, desk.opened.identity.next_incarnation(flushes.next_seq(connection) - 1))
    desk = desk.again()
    desk.commit(6, start=9)
    desk.deliver(config)
    desk.forget_deliveries()
    desk = desk.again()
    assert desk.deliver(config)[0].status == "ok"
    assert desk.replay_all(config) == []
    assert desk.arrived("there") == list(range(15))
    desk.opened.store.close()


def test_a_kill_while_holes_are_filled_is_gone_on_from(desk: Desk) -> None:
    config = desk.config(here="there")
    desk.commit(9)
    _poisoned(desk, config, 1, 4)
    binding.resend(desk.home, config, desk.opened.store, SINK)
    assert not live(lambda: _discarded(desk.deliver(config)), "export.ack.after-commit:1")
    assert desk.deliver(config)[0].status == "ok"
    assert desk.arrived("there") == list(range(9))


def test_a_large_hole_is_cut_into_chunks(desk: Desk) -> None:
    config = desk.config(here="there")
    desk.commit(40)
    desk.deliver(desk.config(here="elsewhere"))
    binding.adopt(desk.home, config, desk.opened.store, SINK)
    desk.commit(3, start=40)
    desk.deliver(config)
    assert desk.arrived("there") == [40, 41, 42]
    binding.resend(desk.home, config, desk.opened.store, SINK)
    desk.deliver(config)
    chunks = FolderDestination(desk.folder / "there").chunks()
    assert max(len(chunk["messages"]) for chunk in chunks) == 3
    assert desk.arrived("there") == list(range(43))


@pytest.mark.hazard(71)
def test_what_another_home_delivered_beyond_a_fork_is_not_taken_for_our_own(desk: Desk) -> None:
    config = desk.config(here="there")
    desk.commit(6)
    desk.deliver(config)
    with desk.opened.store.transaction() as connection:
        whose.save(connection, desk.opened.identity.next_incarnation(6))
    (other,) = [chunk for chunk in FolderDestination(desk.folder / "there").chunks() if chunk["last"] == 6]
    stray = Chunk("stray", KEY, other["gateway"], other["incarnation"], 6, 12)
    sink = FolderSink(configured.settings(desk.home, config, desk.opened.identity, SINK))
    sink._store(stray, [])
    desk = desk.again()
    desk.commit(6, start=6)
    binding.resend(desk.home, config, desk.opened.store, SINK)
    assert desk.deliver(config)[0].status == "ok"
    assert desk.arrived("there") == list(range(12))
    desk.opened.store.close()


# Memory


@pytest.mark.hazard(88)
def test_what_a_restored_plan_may_have_delivered_is_asked_for_before_it_is_cut(desk: Desk) -> None:
    config = desk.config(here="there")
    desk.commit(7)
    # The first plan holds one chunk, the second the other two.
    assert not live(lambda: _discarded(desk.deliver(config)), "export.finish.after-commit:2")
    desk.opened.store.close()
    for suffix in ("", "-wal", "-shm"):
        desk.home.state.with_name(desk.home.state.name + suffix).unlink(missing_ok=True)
    desk = replace(desk, opened=open_home(desk.home))
    desk.between.set("refuse", "\n".join(f"message-{number}" for number in range(7)))
    assert desk.deliver(config)[0].status == "ok"
    assert desk.arrived("there") == list(range(7))
    desk.opened.store.close()


def test_adopt_after_all_memory_is_lost_sends_what_came_since(desk: Desk) -> None:
    config = desk.config(mute=True, here="there")
    desk.commit(6)
    desk.deliver(config)
    desk.forget_deliveries()
    desk = desk.again()
    desk.commit(4, start=6)
    assert desk.deliver(config)[0].status == "held"
    binding.adopt(desk.home, config, desk.opened.store, SINK)
    assert desk.deliver(config)[0].status == "ok"
    assert desk.arrived("there") == list(range(10))
    desk.opened.store.close()


def test_a_stream_whose_rows_are_all_purged_when_memory_is_lost_goes_on(desk: Desk) -> None:
    config = desk.config(mute=True, here="there")
    desk.commit(4, sources=("claude", "codex"))
    desk.deliver(config)
    desk.lake.purge(desk.lake.message_ids())
    desk.forget_deliveries()
    desk = desk.again()
    assert desk.deliver(config)[0].status == "ok"
    desk.commit(4, start=4, sources=("claude", "codex"))
    assert desk.deliver(config)[0].status == "ok"
    assert desk.arrived("there") == list(range(8))
    desk.opened.store.close()


def test_a_letter_that_goes_again_as_a_hole_is_no_letter_any_more(desk: Desk) -> None:
    config = desk.config(here="there")
    desk.commit(9)
    _poisoned(desk, config, 3, 4)
    desk.forget_deliveries()
    desk = desk.again()
    assert desk.deliver(config)[0].status == "ok"
    assert desk.replay_all(config) == []
    assert desk.arrived("there") == list(range(9))
    desk.opened.store.close()


# Sinks that break, and waits that end


class _Breaking(FolderSink):
    """Raises in the method that its options name."""

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

    async def coverage(self, stream: StreamKey, gateway_id: str, incarnation: str) -> Delivered | None:
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
def test_a_sink_that_breaks_anywhere_holds_up_nobody_else(desk: Desk, where: str) -> None:
    options = {"folder": str(desk.folder / "broken"), "breaks": where}
    sound = desk.config(here="there").sinks
    config = Config(sinks={"broken": SinkConfig(BREAKING.name, "* * * * *", (DATASET,), options), **sound})
    desk.commit(9)
    with configured.also(BREAKING):
        configured._kinds()[FOLDER.name] = FOLDER
        broken, whole = desk.deliver(config, max_wait=0.0)
    assert whole.status == "ok"
    assert desk.arrived("there") == list(range(9))
    assert broken.status == ("ok" if where == "close" else "failed")
    # Each stream once, with its error, wherever the sink broke.
    assert [(stream.key.source, bool(stream.error)) for stream in broken.streams] == [("claude", where != "close")]
    lock = locks.try_lock(desk.home, replace(KEY, sink="broken"))
    assert lock is not None
    lock.release()


def test_a_failure_that_cannot_be_written_down_leaves_no_lock_behind(desk: Desk) -> None:
    desk.commit(9, sources=("claude", "codex"))
    config = desk.config(here="there")
    failing = mock.patch.object(streams, "succeeded", side_effect=Retryable("no room", kind="state_unavailable"))
    with failing, mock.patch.object(streams, "failed", side_effect=Retryable("no room", kind="state_unavailable")):
        (report,) = desk.deliver(config)
    assert {(stream.error or {})["kind"] for stream in report.streams} == {"state_unavailable"}
    for source in ("claude", "codex"):
        lock = locks.try_lock(desk.home, replace(KEY, source=source))
        assert lock is not None
        lock.release()
    assert desk.deliver(config)[0].status == "ok"
    assert desk.arrived("there") == list(range(9))


@pytest.mark.hazard(29)
@pytest.mark.parametrize("asked", [1e18, float("inf"), 86_401.0])
def test_a_destination_that_wants_years_is_asked_again_tomorrow(asked: float) -> None:
    assert waiting.time_after(waiting.after_busy(asked, 0)) <= waiting.time_after(86_400.0)


@pytest.mark.hazard(29)
def test_a_cancellation_is_not_swallowed_while_the_page_ahead_is_given_up() -> None:
    class Slow:
        async def page(self, dataset: str, source: str, after: int, until: int, most: int) -> Page:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            raise AssertionError("it waits for ever")

    async def closes() -> None:
        ahead = _Ahead(Slow(), mock.Mock(), mock.Mock(spec=Sink, limits=Limits(3, 100)), KEY, 10)  # type: ignore[arg-type]
        ahead.start(0)
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


def test_a_replay_that_waits_for_its_stream_can_be_cancelled_and_sees_that_its_letter_is_gone(desk: Desk) -> None:
    config = desk.config(here="there")
    desk.commit(6)
    _poisoned(desk, config, 2)
    with desk.opened.store.reading() as connection:
        (letter,) = dead_letters.all_letters(connection)
    driver = Driver(desk.opened, config, desk.lake, Terms(1.0))

    async def scene() -> None:
        lock = locks.try_lock(desk.home, KEY)
        assert lock is not None
        with lock:
            waits = asyncio.create_task(replaying.replay(driver, letter.id))
            await asyncio.sleep(0)
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
            late = asyncio.create_task(replaying.replay(driver, letter.id))
            await asyncio.sleep(0)
            with desk.opened.store.transaction() as connection:
                dead_letters.drop(connection, letter.id)
        with pytest.raises(HypError, match="there is no dead letter"):
            await late

    asyncio.run(scene())
    assert Counter(desk.arrived("there"))[2] == 0


def _discarded(_result: object) -> None:
    return None


@pytest.mark.hazard(88)
def test_what_is_known_not_to_have_arrived_is_not_held_where_nobody_can_be_asked(desk: Desk) -> None:
    """A destination that asks for patience, or refuses more than a round takes: the next round goes on from there."""
    config = desk.config(mute=True, here="there")
    desk.commit(9)
    desk.between.set("refuse", "\n".join(f"message-{number}" for number in range(6)))
    desk.between.set("busy", 1)
    with mock.patch.object(waiting, "after_busy", return_value=60.0):
        assert _error(desk.deliver(config, max_wait=0.0)[0])["kind"] == "destination_busy"
    with mock.patch.object(shipping, "MOST_LETTERS", 2):
        statuses = [desk.deliver(config)[0].status for _ in range(4)]
    assert "held" not in statuses
    assert desk.arrived("there") == [6, 7, 8]
    desk.between.clear()
    assert desk.replay_all(config) == ["delivered"] * 6
    assert desk.arrived("there") == list(range(9))


@pytest.mark.hazard(88)
def test_a_chunk_that_was_known_not_to_have_arrived_is_in_doubt_again_once_it_is_sent(desk: Desk) -> None:
    config = desk.config(mute=True, here="there")
    desk.commit(3)
    desk.between.set("busy", 1)
    with mock.patch.object(waiting, "after_busy", return_value=60.0):
        desk.deliver(config, max_wait=0.0)
    assert not live(lambda: _discarded(desk.deliver(config)), "export.ship.after-answer:1")
    desk.between.set("refuse", "message-1")
    assert desk.deliver(config)[0].status == "held"
    assert desk.arrived("there") == [0, 1, 2]


@pytest.mark.hazard(27)
def test_two_sinks_that_had_one_name_keep_a_letter_each_of_the_same_row(desk: Desk) -> None:
    desk.commit(6)
    _poisoned(desk, desk.config(here="there"), 2)
    config = desk.config(other="there", here="elsewhere")
    desk.deliver(config, "other")
    desk.commit(1, start=6)
    _poisoned(desk, config, 2)
    assert desk.replay_all(config) == ["delivered", "delivered"]
    assert (desk.arrived("there"), desk.arrived("elsewhere")) == (list(range(7)), list(range(7)))


@pytest.mark.hazard(87)
def test_a_sink_is_not_adopted_where_another_one_delivers(desk: Desk) -> None:
    desk.commit(6)
    desk.deliver(desk.config(mute=True, here="there", other="elsewhere"))
    both = desk.config(mute=True, here="there", other="there")
    for change in (binding.adopt, binding.resend):
        with pytest.raises(HypError, match="the sink here also delivers to"):
            change(desk.home, both, desk.opened.store, "other")
    desk.commit(3, start=6)
    desk.deliver(both)
    assert desk.arrived("there") == list(range(9))


@pytest.mark.hazard(87)
def test_a_renamed_sink_keeps_its_watermark_though_its_destination_is_away_at_first(desk: Desk) -> None:
    options = {"folder": str(desk.folder / "there"), "can_be_asked": False, "breaks": "open"}
    broken = Config(sinks={"other": SinkConfig(BREAKING.name, "* * * * *", (DATASET,), options)})
    desk.commit(6)
    desk.deliver(desk.config(mute=True, here="there"))
    desk.commit(3, start=6)
    with configured.also(BREAKING):
        assert desk.deliver(broken, max_wait=0.0)[0].status == "failed"
    with configured.also(between.wrapped(FOLDER, desk.folder / "faults")):
        assert desk.deliver(desk.config(mute=True, other="there"))[0].status == "ok"
    assert desk.arrived("there") == list(range(9))


@pytest.mark.hazard(17)
def test_a_plan_above_an_accepted_rollback_does_not_raise_the_watermark_again(desk: Desk) -> None:
    config = desk.config(here="there")
    desk.commit(9)
    assert not live(lambda: _discarded(desk.deliver(config)), "export.ack.after-commit:1")
    desk.lake.purge([f"message-{number}" for number in range(4, 9)])
    with desk.opened.store.transaction() as connection:
        flushes.lower_high_water(connection, DATASET, 4)
        streams.lower_watermarks(connection, DATASET, 4)
    assert desk.deliver(config)[0].status == "ok"
    with desk.opened.store.reading() as connection:
        (stream,) = streams.all_streams(connection)
    assert stream.watermark == 4
    desk.commit(3, start=9)
    assert desk.deliver(config)[0].status == "ok"
    assert desk.arrived("there") == [0, 1, 2, 3, 9, 10, 11]


@pytest.mark.hazard(87)
def test_two_sinks_that_change_names_keep_their_watermarks(desk: Desk) -> None:
    desk.commit(6)
    desk.deliver(desk.config(mute=True, here="there", other="elsewhere"))
    desk.commit(3, start=6)
    desk.deliver(desk.config(mute=True, here="there", other="elsewhere"), "here")
    desk.commit(3, start=9)
    swapped = desk.config(mute=True, here="elsewhere", other="there")
    desk.deliver(swapped)
    assert [report.status for report in desk.deliver(swapped)] == ["ok", "ok"]
    assert (desk.arrived("there"), desk.arrived("elsewhere")) == (list(range(12)), list(range(12)))


@pytest.mark.hazard(87)
def test_adopt_goes_on_from_what_a_sink_that_is_gone_delivered_there(desk: Desk) -> None:
    desk.commit(6)
    desk.deliver(desk.config(mute=True, here="elsewhere"))
    desk.commit(6, start=6)
    desk.deliver(desk.config(mute=True, gone="there"))
    desk.commit(3, start=12)
    config = desk.config(mute=True, here="there")
    assert desk.deliver(config)[0].status == "held"
    binding.adopt(desk.home, config, desk.opened.store, SINK)
    assert desk.deliver(config)[0].status == "ok"
    assert desk.arrived("there") == list(range(15))


@pytest.mark.hazard(87)
def test_adopt_elsewhere_without_a_memory_asks_the_destination_and_skips_nothing(desk: Desk) -> None:
    desk.commit(3)
    desk.deliver(desk.config(here="there"))
    desk.commit(6, start=3)
    desk.forget_deliveries()
    desk = desk.again()
    config = desk.config(here="elsewhere")
    assert desk.deliver(config)[0].status == "held"
    binding.adopt(desk.home, config, desk.opened.store, SINK)
    assert desk.deliver(config)[0].status == "ok"
    assert set(desk.arrived("elsewhere")) >= set(range(3, 9))
    desk.opened.store.close()


@pytest.mark.hazard(44)
def test_a_dead_letter_holds_nothing_of_the_rows_beside_its_own() -> None:
    """Arrow writes whole buffers: a slice would carry its neighbours' text into the state, where no purge finds it."""
    page = pa.table({"content_text": [f"secret number {number}" for number in range(20)]})
    alone = letters.packed(page.slice(3, 1))
    assert alone == letters.packed(pa.table({"content_text": ["secret number 3"]}))
