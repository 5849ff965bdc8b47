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
import shutil
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hypaware.config.schema import Config, PrivacyConfig, SinkConfig
from hypaware.export import destination_change
from hypaware.export.delivery import DeliveryOptions, Driver, gather_all, replay_letter
from hypaware.export.sink import SinkType
from hypaware.export.status import SinkReport
from hypaware.home import Home
from hypaware.state import dead_letters, flushes, mirror, streams
from hypaware.state.home_opener import OpenHome, open_home
from hypaware.state.store import StateStore, load_identity, save_identity
from hypaware.testing import fault_injection
from hypaware.testing.fault_injection import Faults, run_in_child
from hypaware.testing.sample_lake import DATASET, SampleLake, sample_row

SINK = "here"
_SOURCES = ("claude", "codex", "claude x")
# The crash points of every delivery; a sink adds its own.
POINTS = (
    "export.plan.before-commit", "export.plan.after-commit", "export.plan.after-mirror", "export.ship.before-send",
    "export.ship.after-answer", "export.ack.after-commit", "export.finish.after-commit",
)  # fmt: skip


ROLLBACK_POINTS = ("export.fork.after-commit", "export.fork.after-mirror")


@dataclass(frozen=True)
class SinkHome:
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
        return self.deliver_to([SINK], DeliveryOptions(max_wait, budget))[0]

    def deliver_to(self, sinks: list[str], options: DeliveryOptions) -> list[SinkReport]:
        with self.opened() as opened:
            driver = Driver(opened, self.config, self.lake, options)
            return asyncio.run(gather_all(map(driver.deliver, sinks)))

    def replay_all(self) -> list[dict[str, Any]]:
        with self.opened() as opened:
            with opened.store.reading() as connection:
                letters = dead_letters.list_letters(connection)
            driver = Driver(opened, self.config, self.lake, DeliveryOptions(1.0))
            return [asyncio.run(replay_letter(driver, letter.id)) for letter in letters]

    @contextmanager
    def opened(self) -> Iterator[OpenHome]:
        found = open_home(self.home)
        with closing(found.store):
            yield found


class SinkContract:
    kind: SinkType
    can_be_queried = True
    keeps_ids = False
    """As `Sink.keeps_ids`."""
    drops_known_rows = False
    """Whether the destination drops rows that it has, by their dedupe keys."""
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

    def arrived_once(self, tmp_path: Path, options: Mapping[str, Any]) -> list[str]:
        """Like `arrived`, after the destination has dropped the rows that it has by their dedupe keys."""
        return self.arrived(tmp_path, options)

    @contextmanager
    def sink_home(self, tmp_path: Path, **faults: Any) -> Iterator[SinkHome]:
        home = Home(tmp_path / "home")
        with fault_injection.register_kind(fault_injection.wrap_kind(self.kind, tmp_path / "faults")):
            for kind, value in faults.items():
                Faults(tmp_path / "faults").set(kind, value)
            yield SinkHome(home, SampleLake(tmp_path / "lake"), self._config(self.options(tmp_path)))

    def _config(self, options: Mapping[str, Any]) -> Config:
        return Config(sinks={SINK: SinkConfig(self.kind.name, "* * * * *", (DATASET,), options)})

    def check(self, tmp_path: Path, site: SinkHome, without: Collection[str] = ()) -> None:
        """Assert that every row of the lake is at the destination exactly once."""
        expected = Counter(message for message in site.lake.message_ids() if message not in without)
        found = Counter(self.arrived(tmp_path, site.config.sinks[SINK].options))
        assert found == expected, f"duplicate or unexpected: {found - expected}, missing: {expected - found}"

    def finish(self, tmp_path: Path, site: SinkHome) -> None:
        """End the faults and deliver; every row of the lake is then at the destination exactly once."""
        Faults(tmp_path / "faults").clear()
        assert site.deliver().status == "ok"
        self.check(tmp_path, site)

    # Deliveries

    def test_every_row_arrives_once_and_an_idle_round_sends_nothing(self, tmp_path: Path) -> None:
        with self.sink_home(tmp_path) as site:
            site.commit(40)
            report = site.deliver()
            assert (report.status, sum(stream.rows for stream in report.streams)) == ("ok", 40)
            self.check(tmp_path, site)
            again = site.deliver()
            assert [stream.chunks for stream in again.streams] == [0, 0, 0]
            site.commit(5, start=40)
            assert sum(stream.rows for stream in site.deliver().streams) == 5
            self.check(tmp_path, site)

    def test_a_kill_at_any_crash_point_loses_and_duplicates_no_row(self, tmp_path: Path) -> None:
        for point in (*POINTS, *self.points):
            for passage in (1, 2):
                here = tmp_path / f"{point}-{passage}"
                here.mkdir()
                with self.sink_home(here) as site:
                    site.commit(20)
                    assert not run_in_child(site.deliver, f"{point}:{passage}"), f"no kill at {point}"
                    site.commit(9, start=20)
                    self.finish(here, site)

    def test_a_lost_response_followed_by_new_rows_duplicates_no_row(self, tmp_path: Path) -> None:
        with self.sink_home(tmp_path, lose_answer=4) as site:
            site.commit(20)
            assert site.deliver(max_wait=0.0).status in ("failed", "partial")
            site.commit(9, start=20)
            self.finish(tmp_path, site)

    def test_a_destination_that_is_busy_or_unreachable_for_a_while_receives_every_row(self, tmp_path: Path) -> None:
        with self.sink_home(tmp_path, busy=2, cut=2) as site:
            site.commit(20)
            site.deliver(max_wait=4.0)
            self.finish(tmp_path, site)

    # Changes between two attempts

    def test_compaction_and_a_purge_between_two_attempts_lose_and_duplicate_no_row(self, tmp_path: Path) -> None:
        with self.sink_home(tmp_path, lose_answer=1) as site:
            site.commit(30)
            site.deliver(max_wait=0.0)
            site.lake.compact()
            arrived = set(self.arrived(tmp_path, site.config.sinks[SINK].options))
            gone = [message for message in site.lake.message_ids() if message not in arrived][::2]
            site.lake.purge(gone)
            self.finish(tmp_path, site)

    def test_a_chunk_without_remaining_rows_is_acknowledged_without_the_destination(self, tmp_path: Path) -> None:
        with self.sink_home(tmp_path, cut=99) as site:
            site.commit(3, sources=("claude",))
            site.deliver(max_wait=0.0)
            site.lake.purge(site.lake.message_ids())
            Faults(tmp_path / "faults").clear()
            assert site.deliver().status == "ok"
            assert self.arrived(tmp_path, site.config.sinks[SINK].options) == []

    def test_withheld_rows_never_arrive_and_do_not_delay_other_rows(self, tmp_path: Path) -> None:
        with self.sink_home(tmp_path, lose_answer=1) as opened:
            opened.commit(20, cwds=("/open", "/closed"))
            closed = {f"message-{number}" for number in range(1, 20, 2)}
            privacy = PrivacyConfig(folders={"/closed": "local-only"})
            site = replace(opened, config=replace(opened.config, privacy=privacy))
            site.deliver(max_wait=0.0)
            Faults(tmp_path / "faults").clear()
            assert site.deliver().status == "ok"
            site.commit(6, start=20, cwds=("/closed",))
            closed |= {f"message-{number}" for number in range(20, 26)}
            report = site.deliver()
            assert (report.status, sum(stream.withheld for stream in report.streams)) == ("ok", 6)
            # Once allowed again, they stay undelivered: only a resend sends them.
            assert sum(stream.rows for stream in opened.deliver().streams) == 0
            self.check(tmp_path, site, without=closed)

    def test_a_relocated_home_continues_its_streams(self, tmp_path: Path) -> None:
        with self.sink_home(tmp_path, lose_answer=2) as site:
            site.commit(20)
            site.deliver(max_wait=0.0)
            moved = replace(site, home=_move_home(site.home, tmp_path / "moved"))
            moved.commit(9, start=20)
            self.finish(tmp_path, moved)

    # Lost state

    def test_a_lost_state_is_rebuilt_from_its_mirror(self, tmp_path: Path) -> None:
        for point in POINTS[2:]:
            here = tmp_path / point
            here.mkdir()
            with self.sink_home(here) as site:
                site.commit(20)
                run_in_child(site.deliver, f"{point}:2")
                _remove_state(site.home)
                site.commit(9, start=20)
                self.finish(here, site)

    def test_the_mirror_knows_an_intent_before_its_first_byte_leaves(self, tmp_path: Path) -> None:
        """Otherwise a rebuilt state would cut other chunks, and send rows that have arrived under other ids."""
        with self.sink_home(tmp_path) as opened:
            opened.commit(9, sources=("claude",), cwds=("/open", "/closed"))
            assert not run_in_child(opened.deliver, "export.ship.after-answer")
            _remove_state(opened.home)
            privacy = PrivacyConfig(folders={"/closed": "local-only"})
            site = replace(opened, config=replace(opened.config, privacy=privacy))
            assert site.deliver().status == "ok"
            found = Counter(self.arrived(tmp_path, site.config.sinks[SINK].options))
            assert max(found.values()) == 1, found
            assert set(found) >= {f"message-{number}" for number in range(0, 9, 2)}

    def test_a_lost_watermark_is_read_from_the_destination_or_the_stream_is_held(self, tmp_path: Path) -> None:
        with self.sink_home(tmp_path) as site:
            site.commit(20)
            site.deliver()
            _lose_delivery_record(site)
            site.commit(9, start=20)
            report = site.deliver()
            if self.can_be_queried:
                assert report.status == "ok"
                self.check(tmp_path, site)
            else:
                assert report.status == "held"
                later = {f"message-{number}" for number in range(20, 29)}
                self.check(tmp_path, site, without=later)

    # A home that was rolled back

    def test_a_home_rolled_back_in_place_loses_no_row(self, tmp_path: Path) -> None:
        """The home reuses the sequences of rows that it delivered before the rollback."""
        for point in (None, *ROLLBACK_POINTS):
            here = tmp_path / str(point)
            here.mkdir()
            with self.sink_home(here) as site:
                site.commit(20, sources=("claude",))
                site.deliver()
                # In the lake at the time of the snapshot, delivered after it.
                site.commit(4, start=20, sources=("claude",))
                for name in ("home", "lake"):
                    shutil.copytree(here / name, here / f"{name} of the snapshot", symlinks=True)
                site.commit(9, start=100)
                site.deliver()
                for name in ("home", "lake"):
                    _restore_in_place(here / f"{name} of the snapshot", here / name)
                site.commit(9, start=200)
                if point and self.can_be_queried:
                    assert not run_in_child(site.deliver, point), f"no kill at {point}"
                reports = [site.deliver() for _ in range(3)]
                site.commit(3, start=300)
                reports.append(site.deliver())
                self._check_rollback(here, site, reports)

    def _check_rollback(self, here: Path, site: SinkHome, reports: list[SinkReport]) -> None:
        undone = {f"message-{number}" for number in range(100, 109)}
        duplicates = set() if self.drops_known_rows else {f"message-{number}" for number in range(20, 24)}
        if any(stream.held for stream in reports[-1].streams):
            # Only the user can decide. Here: send what may have arrived.
            assert self.can_be_queried
            assert not self.drops_known_rows
            with site.opened() as opened:
                destination_change.resend(site.home, site.config, opened.store, SINK)
            reports.append(site.deliver())
        assert reports[-1].status == "ok", reports[-1].as_json()
        found = Counter(self.arrived_once(here, site.config.sinks[SINK].options))
        assert set(found) == set(site.lake.message_ids()) | undone
        assert {message for message, times in found.items() if times > 1} <= duplicates

    # Refusals

    def test_refused_rows_become_dead_letters_and_the_other_rows_arrive(self, tmp_path: Path) -> None:
        poison = ("message-4", "message-11", "message-12")
        with self.sink_home(tmp_path, refuse="\n".join(poison)) as site:
            site.commit(30)
            report = site.deliver()
            assert (report.status, sum(stream.dead_letters for stream in report.streams)) == ("partial", 3)
            self.check(tmp_path, site, without=poison)
            assert {answer["status"] for answer in site.replay_all()} == {"refused"}
            Faults(tmp_path / "faults").clear()
            for point in ("export.replay.after-answer", "export.replay.after-commit"):
                assert not run_in_child(site.replay_all, point)
            assert {answer["status"] for answer in site.replay_all()} <= {"delivered"}
            self.check(tmp_path, site)
            self.finish(tmp_path, site)

    def test_a_kill_while_a_refused_chunk_is_split_loses_no_row(self, tmp_path: Path) -> None:
        poison = ("message-4", "message-11")
        for point in ("export.split.after-commit:2", "export.bury.after-commit:2", "export.ship.before-send:4"):
            here = tmp_path / point
            here.mkdir()
            with self.sink_home(here, refuse="\n".join(poison)) as site:
                site.commit(30)
                assert not run_in_child(site.deliver, point)
                site.commit(9, start=30)
                while any(stream.held for stream in site.deliver().streams):
                    # The destination cannot be queried for the half that may have been sent: the user skips it.
                    assert not self.can_be_queried
                    assert not self.keeps_ids, "a refusal of the same id means that the destination does not have it"
                    with site.opened() as opened:
                        destination_change.adopt(site.home, site.config, opened.store, SINK)
                Faults(here / "faults").clear()
                assert {answer["status"] for answer in site.replay_all()} == {"delivered"}
                self.check(here, site)

    # Several sinks and rounds

    def test_two_sinks_of_one_kind_have_separate_watermarks(self, tmp_path: Path) -> None:
        with self.sink_home(tmp_path) as site:
            site.commit(12)
            site.deliver()
            other = replace(site, config=self._config(self.other_options(tmp_path)))
            sinks = {"there": other.config.sinks[SINK], **site.config.sinks}
            both = replace(site, config=Config(sinks=sinks))
            reports = both.deliver_to(["there", SINK], DeliveryOptions(1.0))
            assert [report.status for report in reports] == ["ok", "ok"]
            self.check(tmp_path, site)
            self.check(tmp_path, other)

    def test_two_concurrent_rounds_duplicate_no_row(self, tmp_path: Path) -> None:
        with self.sink_home(tmp_path) as site:
            site.commit(40)
            with site.opened() as opened:

                async def both() -> list[SinkReport]:
                    drivers = [Driver(opened, site.config, site.lake, DeliveryOptions(20.0)) for _ in range(2)]
                    return await gather_all(driver.deliver(SINK) for driver in drivers)

                asyncio.run(both())
            self.check(tmp_path, site)

    # Changed destinations and names

    def test_a_sink_that_points_elsewhere_is_held_until_the_user_decides(self, tmp_path: Path) -> None:
        with self.sink_home(tmp_path) as site:
            site.commit(12)
            site.deliver()
            elsewhere = replace(site, config=self._config(self.other_options(tmp_path)))
            site.commit(6, start=12)
            assert elsewhere.deliver().status == "held"
            assert self.arrived(tmp_path, elsewhere.config.sinks[SINK].options) == []
            with elsewhere.opened() as opened:
                destination_change.adopt(elsewhere.home, elsewhere.config, opened.store, SINK)
            assert elsewhere.deliver().status == "ok"
            self.check(tmp_path, elsewhere, without={f"message-{number}" for number in range(12)})
            with elsewhere.opened() as opened:
                destination_change.resend(site.home, site.config, opened.store, SINK)
            assert site.deliver().status == "ok"
            if self.can_be_queried:
                self.check(tmp_path, site)

    def test_a_renamed_sink_sends_no_row_again(self, tmp_path: Path) -> None:
        with self.sink_home(tmp_path) as site:
            site.commit(12)
            site.deliver()
            renamed = replace(site, config=Config(sinks={"other": site.config.sinks[SINK]}))
            site.commit(3, start=12)
            (report,) = renamed.deliver_to(["other"], DeliveryOptions(1.0))
            assert sum(stream.rows for stream in report.streams) == 3
            self.check(tmp_path, site)


def _move_home(home: Home, to: Path) -> Home:
    """Move the home and record its new path."""
    home.root.rename(to)
    there = Home(to)
    with closing(StateStore(there.state)) as store:
        with store.transaction() as connection:
            known = load_identity(connection)
            assert known is not None
            save_identity(connection, replace(known, home_path=str(to.resolve())))
        mirror.write_mirror(there.mirror, store)
    return there


def _remove_state(home: Home) -> None:
    """Remove the state; only its mirror remains."""
    for suffix in ("", "-wal", "-shm"):
        home.state.with_name(home.state.name + suffix).unlink(missing_ok=True)


def _restore_in_place(snapshot: Path, folder: Path) -> None:
    """Restore the contents of a folder, which stays the same folder, as `rsync --delete` or a file system does."""
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(snapshot, folder, symlinks=True, dirs_exist_ok=True)


def _lose_delivery_record(site: SinkHome) -> None:
    """Put the state into the condition after a loss of state and mirror: the delivery record is gone."""
    with site.opened() as opened, opened.store.transaction() as connection:
        for stream in streams.list_streams(connection):
            streams.cancel_intent(connection, stream.key)
            streams.restore_stream(connection, replace(stream, watermark=None, history=streams.HISTORY_LOST))
        save_identity(connection, opened.identity.next_incarnation(flushes.next_sequence(connection) - 1))
