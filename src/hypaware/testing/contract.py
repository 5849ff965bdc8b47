"""The contract of every sink. Subclass it in a test module and name the sink to test:

    class TestMySink(SinkContract):
        kind = MY_SINK

        def options(self, tmp_path): ...
        def other_options(self, tmp_path): ...
        def arrived(self, tmp_path, options): ...

The destination is real. Faults (a lost response, refused rows, a kill at each crash point) are injected between the
sink and the driver, so that they occur in the same way for every kind of sink.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hypaware.config.schema import Config, PrivacyConfig, SinkConfig
from hypaware.export import binding, configured, replay
from hypaware.export.driver import Driver, Terms
from hypaware.export.report import SinkReport
from hypaware.export.sink import SinkType
from hypaware.home import Home
from hypaware.opening import OpenHome, open_home
from hypaware.state import dead_letters, flushes, intents, mirror, streams, whose
from hypaware.state.store import Store
from hypaware.testing import between
from hypaware.testing.between import Between
from hypaware.testing.lives import live
from hypaware.testing.sample_lake import DATASET, SampleLake, sample_row

SINK = "here"
_SOURCES = ("claude", "codex", "claude x")
# The crash points of every delivery; a sink adds its own.
POINTS = (
    "export.plan.before-commit", "export.plan.after-commit", "export.plan.after-mirror", "export.ship.before-send",
    "export.ship.after-answer", "export.ack.after-commit", "export.finish.after-commit",
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A home with its lake and one configured sink."""

    home: Home
    lake: SampleLake
    config: Config

    def commit(
        self, count: int, start: int = 0, sources: tuple[str, ...] = _SOURCES, cwds: tuple[str, ...] = ("/open",)
    ) -> None:
        rows = [
            {**sample_row(number, sources[number % len(sources)]), "cwd": cwds[number % len(cwds)]}
            for number in range(start, start + count)
        ]
        with self.opened() as opened:
            self.lake.commit(opened, rows)

    def deliver(self, max_wait: float = 1.0, budget: int | None = None) -> SinkReport:
        with self.opened() as opened:
            driver = Driver(opened, self.config, self.lake, Terms(max_wait, budget))
            return asyncio.run(driver.deliver([SINK]))[0]

    def replay_all(self) -> list[dict[str, Any]]:
        with self.opened() as opened:
            with opened.store.reading() as connection:
                letters = dead_letters.all_letters(connection)
            driver = Driver(opened, self.config, self.lake, Terms(1.0))
            return [asyncio.run(replay.replay(driver, letter.id)) for letter in letters]

    @contextmanager
    def opened(self) -> Iterator[OpenHome]:
        found = open_home(self.home)
        try:
            yield found
        finally:
            found.store.close()


class SinkContract:
    kind: SinkType
    can_be_asked = True
    points: tuple[str, ...] = ()
    """The crash points of the sink itself."""

    def options(self, tmp_path: Path) -> Mapping[str, Any]:
        """Return the options of a new destination below `tmp_path`; equal options mean the same destination."""
        raise NotImplementedError

    def other_options(self, tmp_path: Path) -> Mapping[str, Any]:
        """Return the options of another destination."""
        raise NotImplementedError

    def arrived(self, tmp_path: Path, options: Mapping[str, Any]) -> list[str]:
        """Read the message ids of all rows at that destination, without the sink; a duplicate row is listed twice."""
        raise NotImplementedError

    @contextmanager
    def place(self, tmp_path: Path, **faults: Any) -> Iterator[Place]:
        home = Home(tmp_path / "home")
        with configured.also(between.wrapped(self.kind, tmp_path / "faults")):
            for kind, value in faults.items():
                Between(tmp_path / "faults").set(kind, value)
            yield Place(home, SampleLake(tmp_path / "lake"), self._config(self.options(tmp_path)))

    def _config(self, options: Mapping[str, Any]) -> Config:
        return Config(sinks={SINK: SinkConfig(self.kind.name, "* * * * *", (DATASET,), options)})

    def check(self, tmp_path: Path, place: Place, without: Collection[str] = ()) -> None:
        """Assert that every row of the lake is at the destination exactly once."""
        expected = Counter(message for message in place.lake.message_ids() if message not in without)
        found = Counter(self.arrived(tmp_path, place.config.sinks[SINK].options))
        assert found == expected, f"duplicate or unexpected: {found - expected}, missing: {expected - found}"

    # Deliveries

    def test_every_row_arrives_once_and_an_idle_round_sends_nothing(self, tmp_path: Path) -> None:
        with self.place(tmp_path) as place:
            place.commit(40)
            report = place.deliver()
            assert (report.status, sum(stream.rows for stream in report.streams)) == ("ok", 40)
            self.check(tmp_path, place)
            again = place.deliver()
            assert [stream.chunks for stream in again.streams] == [0, 0, 0]
            place.commit(5, start=40)
            assert sum(stream.rows for stream in place.deliver().streams) == 5
            self.check(tmp_path, place)

    def test_a_kill_at_any_crash_point_loses_and_duplicates_no_row(self, tmp_path: Path) -> None:
        for point in (*POINTS, *self.points):
            for passage in (1, 2):
                here = tmp_path / f"{point}-{passage}"
                here.mkdir()
                with self.place(here) as place:
                    place.commit(20)
                    assert not live(place.deliver, f"{point}:{passage}"), f"no kill at {point}"
                    place.commit(9, start=20)
                    assert place.deliver().status == "ok"
                    self.check(here, place)

    def test_a_lost_response_followed_by_new_rows_duplicates_no_row(self, tmp_path: Path) -> None:
        with self.place(tmp_path, lose_answer=4) as place:
            place.commit(20)
            assert place.deliver(max_wait=0.0).status in ("failed", "partial")
            place.commit(9, start=20)
            Between(tmp_path / "faults").clear()
            assert place.deliver().status == "ok"
            self.check(tmp_path, place)

    def test_a_destination_that_is_busy_or_unreachable_for_a_while_receives_every_row(self, tmp_path: Path) -> None:
        with self.place(tmp_path, busy=2, cut=2) as place:
            place.commit(20)
            place.deliver(max_wait=4.0)
            Between(tmp_path / "faults").clear()
            assert place.deliver().status == "ok"
            self.check(tmp_path, place)

    # Changes between two attempts

    def test_compaction_and_a_purge_between_two_attempts_lose_and_duplicate_no_row(self, tmp_path: Path) -> None:
        with self.place(tmp_path, lose_answer=1) as place:
            place.commit(30)
            place.deliver(max_wait=0.0)
            place.lake.compact()
            arrived = set(self.arrived(tmp_path, place.config.sinks[SINK].options))
            gone = [message for message in place.lake.message_ids() if message not in arrived][::2]
            place.lake.purge(gone)
            Between(tmp_path / "faults").clear()
            assert place.deliver().status == "ok"
            self.check(tmp_path, place)

    def test_a_chunk_without_remaining_rows_is_acknowledged_without_the_destination(self, tmp_path: Path) -> None:
        with self.place(tmp_path, cut=99) as place:
            place.commit(3, sources=("claude",))
            place.deliver(max_wait=0.0)
            place.lake.purge(place.lake.message_ids())
            Between(tmp_path / "faults").clear()
            assert place.deliver().status == "ok"
            assert self.arrived(tmp_path, place.config.sinks[SINK].options) == []

    def test_withheld_rows_never_arrive_and_do_not_delay_other_rows(self, tmp_path: Path) -> None:
        with self.place(tmp_path, lose_answer=1) as opened:
            opened.commit(20, cwds=("/open", "/closed"))
            closed = {f"message-{number}" for number in range(1, 20, 2)}
            privacy = PrivacyConfig(folders={"/closed": "local-only"})
            place = replace(opened, config=replace(opened.config, privacy=privacy))
            place.deliver(max_wait=0.0)
            Between(tmp_path / "faults").clear()
            assert place.deliver().status == "ok"
            place.commit(6, start=20, cwds=("/closed",))
            closed |= {f"message-{number}" for number in range(20, 26)}
            report = place.deliver()
            assert (report.status, sum(stream.withheld for stream in report.streams)) == ("ok", 6)
            # Once allowed again, they stay undelivered: only a resend sends them.
            assert sum(stream.rows for stream in opened.deliver().streams) == 0
            self.check(tmp_path, place, without=closed)

    def test_a_relocated_home_continues_its_streams(self, tmp_path: Path) -> None:
        with self.place(tmp_path, lose_answer=2) as place:
            place.commit(20)
            place.deliver(max_wait=0.0)
            moved = replace(place, home=_moved(place.home, tmp_path / "moved"))
            moved.commit(9, start=20)
            Between(tmp_path / "faults").clear()
            assert moved.deliver().status == "ok"
            self.check(tmp_path, moved)

    # Lost state

    def test_a_lost_state_is_rebuilt_from_its_mirror(self, tmp_path: Path) -> None:
        for point in POINTS[2:]:
            here = tmp_path / point
            here.mkdir()
            with self.place(here) as place:
                place.commit(20)
                live(place.deliver, f"{point}:2")
                _forget_state(place.home)
                place.commit(9, start=20)
                assert place.deliver().status == "ok"
                self.check(here, place)

    def test_a_lost_watermark_is_read_from_the_destination_or_the_stream_is_held(self, tmp_path: Path) -> None:
        with self.place(tmp_path) as place:
            place.commit(20)
            place.deliver()
            _forget_deliveries(place)
            place.commit(9, start=20)
            report = place.deliver()
            if self.can_be_asked:
                assert report.status == "ok"
                self.check(tmp_path, place)
            else:
                assert report.status == "held"
                later = {f"message-{number}" for number in range(20, 29)}
                self.check(tmp_path, place, without=later)

    # Refusals

    def test_refused_rows_become_dead_letters_and_the_other_rows_arrive(self, tmp_path: Path) -> None:
        poison = ("message-4", "message-11", "message-12")
        with self.place(tmp_path, refuse="\n".join(poison)) as place:
            place.commit(30)
            report = place.deliver()
            assert (report.status, sum(stream.dead_letters for stream in report.streams)) == ("partial", 3)
            self.check(tmp_path, place, without=poison)
            assert {answer["status"] for answer in place.replay_all()} == {"refused"}
            Between(tmp_path / "faults").clear()
            for point in ("export.replay.after-answer", "export.replay.after-commit"):
                assert not live(place.replay_all, point)
            assert {answer["status"] for answer in place.replay_all()} <= {"delivered"}
            self.check(tmp_path, place)
            assert place.deliver().status == "ok"
            self.check(tmp_path, place)

    def test_a_kill_while_a_refused_chunk_is_split_loses_no_row(self, tmp_path: Path) -> None:
        poison = ("message-4", "message-11")
        for point in ("export.split.after-commit", "export.bury.after-commit"):
            here = tmp_path / point
            here.mkdir()
            with self.place(here, refuse="\n".join(poison)) as place:
                place.commit(30)
                assert not live(place.deliver, f"{point}:2")
                place.commit(9, start=30)
                while any(stream.held for stream in place.deliver().streams):
                    # The destination cannot be queried for the half that may have been sent: the user skips it.
                    assert not self.can_be_asked
                    with place.opened() as opened:
                        binding.adopt(place.home, place.config, opened.store, SINK)
                Between(here / "faults").clear()
                assert {answer["status"] for answer in place.replay_all()} == {"delivered"}
                self.check(here, place)

    # Several sinks and rounds

    def test_two_sinks_of_one_kind_have_separate_watermarks(self, tmp_path: Path) -> None:
        with self.place(tmp_path) as place:
            place.commit(12)
            place.deliver()
            other = replace(place, config=self._config(self.other_options(tmp_path)))
            sinks = {"there": other.config.sinks[SINK], **place.config.sinks}
            both = replace(place, config=Config(sinks=sinks))
            with both.opened() as opened:
                driver = Driver(opened, both.config, both.lake, Terms(1.0))
                reports = asyncio.run(driver.deliver(["there", SINK]))
            assert [report.status for report in reports] == ["ok", "ok"]
            self.check(tmp_path, place)
            self.check(tmp_path, other)

    def test_two_concurrent_rounds_duplicate_no_row(self, tmp_path: Path) -> None:
        with self.place(tmp_path) as place:
            place.commit(40)
            with place.opened() as opened:

                async def both() -> list[list[SinkReport]]:
                    drivers = [Driver(opened, place.config, place.lake, Terms(20.0)) for _ in range(2)]
                    return list(await asyncio.gather(*(driver.deliver([SINK]) for driver in drivers)))

                asyncio.run(both())
            self.check(tmp_path, place)

    # Changed destinations and names

    def test_a_sink_that_points_elsewhere_is_held_until_the_user_decides(self, tmp_path: Path) -> None:
        with self.place(tmp_path) as place:
            place.commit(12)
            place.deliver()
            elsewhere = replace(place, config=self._config(self.other_options(tmp_path)))
            place.commit(6, start=12)
            assert elsewhere.deliver().status == "held"
            assert self.arrived(tmp_path, elsewhere.config.sinks[SINK].options) == []
            with elsewhere.opened() as opened:
                binding.adopt(elsewhere.home, elsewhere.config, opened.store, SINK)
            assert elsewhere.deliver().status == "ok"
            self.check(tmp_path, elsewhere, without={f"message-{number}" for number in range(12)})
            with elsewhere.opened() as opened:
                binding.resend(place.home, place.config, opened.store, SINK)
            assert place.deliver().status == "ok"
            if self.can_be_asked:
                self.check(tmp_path, place)

    def test_a_renamed_sink_sends_no_row_again(self, tmp_path: Path) -> None:
        with self.place(tmp_path) as place:
            place.commit(12)
            place.deliver()
            renamed = replace(place, config=Config(sinks={"other": place.config.sinks[SINK]}))
            place.commit(3, start=12)
            with renamed.opened() as opened:
                (report,) = asyncio.run(Driver(opened, renamed.config, renamed.lake, Terms(1.0)).deliver(["other"]))
            assert sum(stream.rows for stream in report.streams) == 3
            self.check(tmp_path, place)


def _moved(home: Home, to: Path) -> Home:
    """Move the home and record its new path."""
    home.root.rename(to)
    there = Home(to)
    with closing(Store(there.state)) as store:
        with store.transaction() as connection:
            known = whose.load(connection)
            assert known is not None
            whose.save(connection, replace(known, home_path=str(to.resolve())))
        mirror.write(there.mirror, store)
    return there


def _forget_state(home: Home) -> None:
    """Delete the state; only the mirror remains."""
    for suffix in ("", "-wal", "-shm"):
        home.state.with_name(home.state.name + suffix).unlink(missing_ok=True)


def _forget_deliveries(place: Place) -> None:
    """Put the state into the condition after a loss of state and mirror: the delivery record is gone."""
    with place.opened() as opened, opened.store.transaction() as connection:
        for stream in streams.all_streams(connection):
            intents.cancel(connection, stream.key)
            streams.restore(connection, replace(stream, watermark=None, history=streams.LOST))
        whose.save(connection, opened.identity.next_incarnation(flushes.next_seq(connection) - 1))
