"""Retention: which days are dropped, which rows are held, and which warnings are given."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import date, timedelta

import pytest

from hypaware.backfill.pinned import Window
from hypaware.backfill.request import kept_window
from hypaware.config import Config, RetentionConfig
from hypaware.errors import Cancelled
from hypaware.export import binding, configured
from hypaware.home import Home
from hypaware.lake import metadata
from hypaware.lake.metadata import DataFile
from hypaware.maintain import holds, kept
from hypaware.maintain.needed import Needs
from hypaware.maintain.retention import is_due, retention_standing
from hypaware.model import datasets
from hypaware.model.datasets import SEQ
from hypaware.opening import open_home
from hypaware.state import dead_letters, flushes, intents, streams
from hypaware.state.dead_letters import DeadLetter
from hypaware.state.stream_key import StreamKey
from hypaware.testing.destination import FOLDER
from tests.light_lake import read_lake
from tests.light_life import DATASET
from tests.unit.maintain.compacting import SmallFiles
from tests.unit.maintain.retaining import NOW, TODAY, Keeper, days_ago, later

MESSAGES = datasets.get(DATASET)
EXCHANGES = replace(MESSAGES, name="ai_gateway_exchanges", retention_days=7)


@pytest.fixture
def keeper(home: Home) -> Iterator[Keeper]:
    with configured.also(FOLDER):
        yield Keeper(home)


def status_of(keeper: Keeper, days: int = 0) -> dict[str, object]:
    with closing(open_home(keeper.home).store) as store:
        (found,) = retention_standing(keeper.home, keeper.config, store, later(days))
    return found


def due(keeper: Keeper, days: int = 0) -> bool:
    with closing(open_home(keeper.home).store) as store:
        return is_due(keeper.home, keeper.config, store, MESSAGES, later(days))


# The retention period


def test_the_config_of_a_dataset_overrides_its_own_period_and_the_default() -> None:
    config = Config(retention=RetentionConfig(default_days=90, datasets={}))
    assert kept.days_kept(config, MESSAGES) == 90
    assert kept.days_kept(config, EXCHANGES) == 7
    configured_config = replace(config, retention=RetentionConfig(default_days=90, datasets={EXCHANGES.name: 0}))
    assert kept.days_kept(configured_config, EXCHANGES) == 0
    assert kept.first_day_kept(configured_config, EXCHANGES, NOW) is None
    assert kept.first_day_kept(config, MESSAGES, NOW) == days_ago(90)
    endless = replace(config, retention=RetentionConfig(default_days=2**40))
    assert kept.first_day_kept(endless, MESSAGES, NOW) is None


def test_whole_days_are_dropped_and_the_first_day_kept_stays(keeper: Keeper) -> None:
    _, _, *staying = keeper.commit(90, 31, 30, 29, 0)
    before = keeper.data_files()
    report = keeper.retain()
    assert keeper.messages() == staying
    assert (report.rows_expired, report.rows_held, report.errors) == (2, 0, [])
    assert report.reasons == [f"dropped 2 rows of 2 days before {days_ago(30)}"]
    assert keeper.data_files() == before, "no data file was written, changed or removed"
    assert keeper.retained_from == str(days_ago(30))


def test_a_dataset_kept_forever_is_not_changed(keeper: Keeper) -> None:
    keeper.keep(default_days=0)
    messages = keeper.commit(4000, 0)
    known = keeper.table
    assert not due(keeper)
    assert keeper.retain().as_json()["reason"] == "nothing to do"
    assert (keeper.messages(), keeper.table, keeper.retained_from) == (messages, known, None)


def test_all_due_days_are_dropped_in_one_commit(keeper: Keeper) -> None:
    for age in (80, 70, 60, 0):
        keeper.commit(age)
    snapshots = len(keeper.table.snapshots)
    assert due(keeper)
    keeper.retain()
    known = keeper.table
    assert len(known.snapshots) == snapshots + 1
    assert not due(keeper)
    keeper.retain()
    assert keeper.table.path == known.path


def test_the_first_day_kept_is_recorded_and_only_advances(keeper: Keeper) -> None:
    messages = keeper.commit(5)
    assert due(keeper), "imports need the first day kept"
    keeper.retain()
    first = keeper.table
    assert (keeper.retained_from, keeper.messages()) == (str(days_ago(30)), messages)
    keeper.retain()
    assert keeper.table.path == first.path
    assert not due(keeper, days=1), "the first day kept advances every day, which does not start an engine"
    keeper.keep(default_days=300)
    keeper.retain()
    assert keeper.retained_from == str(days_ago(30))
    keeper.keep(default_days=10)
    keeper.retain()
    assert keeper.retained_from == str(days_ago(10))
    assert keeper.table.floor == first.floor


def test_a_dry_run_reports_the_same_and_changes_nothing(keeper: Keeper) -> None:
    keeper.declare("team")
    keeper.commit(40, 0)
    keeper.commit(50, source="codex")
    keeper.deliver()
    keeper.commit(45)
    known, state = keeper.table, keeper.home.state.read_bytes()
    planned = keeper.retain(dry_run=True)
    assert (keeper.table, keeper.home.state.read_bytes()) == (known, state)
    done = keeper.retain()
    assert (planned.rows_expired, planned.rows_held) == (done.rows_expired, done.rows_held) == (2, 1)
    assert planned.held == done.held
    assert planned.reasons[0].replace("would drop", "dropped") == done.reasons[0]


def test_rows_without_a_time_are_kept_and_counted(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper.commit(40, 0)
    without_day = [replace(file, day=None) if file.day == TODAY else file for file in metadata.live_files(keeper.table)]
    monkeypatch.setattr(metadata, "remembered_files", lambda _table: iter(without_day))
    report = keeper.retain()
    assert (report.rows_expired, report.rows_without_time) == (1, 1)


def test_nothing_is_dropped_after_the_deadline_or_a_cancellation(keeper: Keeper) -> None:
    messages = keeper.commit(40, 0)
    report = keeper.retain(deadline=time.monotonic() - 1)
    assert (report.rows_expired, keeper.messages()) == (0, messages)
    assert report.reasons == ["1 row due to be dropped, but the time was up"]

    def cancelled() -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        keeper.retain(check_cancelled=cancelled)
    assert keeper.messages() == messages


def test_a_clock_that_went_back_drops_nothing(keeper: Keeper) -> None:
    messages = keeper.commit(4000, 0)
    report = keeper.retain(later(-2))
    assert keeper.messages() == messages
    assert "the clock may be wrong" in report.reasons[0]
    assert keeper.notes == report.reasons == status_of(keeper, -2)["warnings"]
    assert not due(keeper, days=-2)
    assert due(keeper)


# Holds for sinks


@pytest.mark.hazard(39)
def test_rows_are_held_until_every_sink_has_them(keeper: Keeper) -> None:
    keeper.declare("quick")
    slow = keeper.declare("slow")
    messages = keeper.commit(40, 35, 0)
    keeper.deliver("quick")
    report = keeper.retain()
    assert (report.rows_expired, report.rows_held, keeper.messages()) == (0, 2, messages)
    assert report.held[0] == {
        "source": "claude",
        "day": str(days_ago(40)),
        "rows": 1,
        "sinks": ["slow"],
        "since": str(TODAY),
        "until": str(TODAY + timedelta(days=30)),
    }
    assert report.reasons == ["2 rows of 2 days due to be dropped, held for slow"]
    assert not due(keeper)
    keeper.deliver("slow")
    assert due(keeper)
    assert keeper.retain().rows_expired == 2
    assert (keeper.messages(), slow.arrived()) == (messages[2:], messages)
    assert status_of(keeper)["held"] == []


def test_only_files_above_the_watermark_of_their_source_are_held(keeper: Keeper) -> None:
    keeper.declare("team")
    keeper.commit(40)
    keeper.deliver()
    held = keeper.commit(40)
    held += keeper.commit(40, source="codex")
    report = keeper.retain()
    assert (report.rows_expired, report.rows_held, keeper.messages()) == (1, 2, held)


def test_a_sink_without_the_dataset_or_a_removed_sink_holds_nothing(keeper: Keeper) -> None:
    keeper.declare("other", datasets=("something_else",))
    keeper.declare("gone")
    keeper.commit(40)
    assert keeper.retain().rows_held == 1
    del keeper.sinks["gone"]
    assert keeper.retain().rows_expired == 1


def test_nothing_is_held_with_wait_for_sinks_off(keeper: Keeper) -> None:
    keeper.declare("team")
    keeper.commit(40)
    keeper.keep(wait_for_sinks=False)
    assert keeper.retain().rows_expired == 1
    assert (keeper.drops(), keeper.notes) == ([], [])


def test_a_sink_with_a_new_destination_has_received_nothing_there(keeper: Keeper) -> None:
    keeper.declare("team")
    messages = keeper.commit(40)
    keeper.deliver()
    destination = keeper.declare("team", place="elsewhere")
    keeper.deliver()
    assert keeper.retain().held[0]["sinks"] == ["team"]
    with closing(open_home(keeper.home).store) as store:
        binding.resend(keeper.home, keeper.config, store, "team")
    assert keeper.retain().rows_held == 1
    keeper.deliver()
    assert keeper.retain().rows_expired == 1
    assert destination.arrived() == messages


def test_rows_are_held_for_a_sink_whose_kind_is_not_installed(keeper: Keeper) -> None:
    keeper.declare("team")
    keeper.commit(40)
    keeper.deliver()
    keeper.sinks["team"] = replace(keeper.sinks["team"], kind="not-installed")
    assert keeper.retain().held[0]["sinks"] == ["team"]


def test_rows_of_a_pending_intent_are_held(keeper: Keeper) -> None:
    """A stream that lost its watermark has an intent that starts at the beginning."""
    keeper.declare("team")
    keeper.commit(40, 39)
    keeper.deliver()
    with closing(open_home(keeper.home).store) as store, store.transaction() as connection:
        intents.plan(connection, intents.Intent(StreamKey("team", DATASET, "claude"), 1, 2, ()))
    report = keeper.retain()
    assert (report.rows_expired, report.rows_held) == (1, 1)


def test_rows_with_a_dead_letter_are_held(keeper: Keeper) -> None:
    keeper.declare("team")
    keeper.commit(40, 39)
    first, second = sorted(each[SEQ] for each in read_lake(keeper.home, DATASET))
    keeper.deliver()
    key = StreamKey("team", DATASET, "claude")
    letters = [
        DeadLetter("bare", key, "i", first - 1, first, 1, "odd", "2026-11-15T07:00:00+00:00"),
        DeadLetter("packed", key, "i", second - 1, second, 1, "odd", "2026-11-15T07:00:00+00:00"),
    ]
    with closing(open_home(keeper.home).store) as store, store.transaction() as connection:
        for letter, body in zip(letters, (None, b"rows"), strict=True):
            dead_letters.bury(connection, letter, body)
    report = keeper.retain()
    assert (report.rows_expired, report.rows_held) == (0, 2), "a dead letter's copy may be lost with the state"
    with closing(open_home(keeper.home).store) as store, store.transaction() as connection:
        dead_letters.drop(connection, "bare")
    assert keeper.retain().rows_expired == 1
    assert [each[SEQ] for each in read_lake(keeper.home, DATASET)] == [second]


def test_a_file_without_sequences_is_held_for_every_sink() -> None:
    file = DataFile(
        path=Home.from_environment().root, bytes=1, rows=2, source="claude", max_seq=2, min_seq=1, sequenced=2
    )
    deliveries = Needs(("team",), {("team", "claude"): 9})
    assert deliveries.sinks_for(file) == ()
    assert (
        deliveries.sinks_for(replace(file, max_seq=None))
        == deliveries.sinks_for(replace(file, sequenced=1))
        == ("team",)
    )
    assert Needs().sinks_for(replace(file, max_seq=None)) == ()


def test_rows_of_an_unfinished_flush_stay_for_recovery(keeper: Keeper) -> None:
    first, second = keeper.commit(40) + keeper.commit(40)
    with closing(open_home(keeper.home).store) as store, store.transaction() as connection:
        connection.exec_driver_sql("UPDATE flushes SET status = 'reserved' WHERE seq_last = 2")
    assert keeper.retain().rows_expired == 1
    assert keeper.messages() == [second]
    keeper.commit(0)
    assert keeper.retain().rows_expired == 1
    assert first not in keeper.messages()


# The length of a hold


def test_rows_held_too_long_are_dropped_after_a_warning_and_recorded(keeper: Keeper) -> None:
    keeper.declare("team")
    keeper.commit(60, 59, 0)
    keeper.retain()
    assert keeper.notes == []
    keeper.retain(later(22))
    assert (keeper.notes, status_of(keeper, 22)["warnings"]) == ([], [])
    keeper.retain(later(23))
    end = TODAY + timedelta(days=30)
    warning = (
        f"warning: 2 rows of {DATASET} (claude, {days_ago(60)} to {days_ago(59)}) have not been delivered to team and "
        f"will be dropped on {end}; to deliver them first, run: hyp export team"
    )
    assert keeper.notes == [warning] == status_of(keeper, 23)["warnings"]
    assert not due(keeper, days=29)
    assert len(keeper.messages()) == 3
    assert due(keeper, days=30)
    report = keeper.retain(later(30))
    assert (report.rows_expired, len(keeper.messages())) == (2, 1)
    assert "are dropped now" in keeper.notes[-1]
    configured_config = status_of(keeper, 30)["dropped_undelivered"]
    assert configured_config == [
        {"source": "claude", "day": str(days_ago(age)), "rows": 1, "sinks": ["team"], "at": later(30).isoformat()}
        for age in (60, 59)
    ]
    assert all(drop.landed for drop in keeper.drops())
    keeper.deliver()
    assert keeper.retain(later(30)).rows_expired == 0


def test_a_hold_starts_when_rows_are_first_found_due(keeper: Keeper) -> None:
    """Rows are not dropped without a warning if retention is turned on late or history arrives late."""
    keeper.declare("team")
    keeper.keep(default_days=0)
    keeper.commit(900)
    keeper.retain()
    keeper.keep(default_days=30)
    keeper.retain(later(5))
    keeper.commit(900)
    assert [held["since"] for held in keeper.retain(later(20)).held] == [
        str(TODAY + timedelta(days=5)),
        str(TODAY + timedelta(days=20)),
    ]
    assert keeper.retain(later(35)).rows_expired == 1
    assert keeper.retain(later(49)).rows_held == 1
    assert keeper.retain(later(50)).rows_expired == 1
    assert len(keeper.drops()) == 2


def test_a_finished_hold_does_not_shorten_the_next_one(keeper: Keeper) -> None:
    keeper.declare("team")
    keeper.commit(40)
    keeper.retain()
    keeper.deliver()
    keeper.commit(40)
    report = keeper.retain(later(29))
    assert (report.rows_expired, report.rows_held) == (1, 1)
    assert report.held[0]["since"] == str(TODAY + timedelta(days=29))


def test_with_a_limit_of_zero_days_nothing_is_held(keeper: Keeper) -> None:
    keeper.declare("team")
    keeper.commit(40)
    keeper.keep(max_hold_days=0)
    assert keeper.retain().rows_expired == 1
    assert len(keeper.drops()) == 1
    assert "is dropped now" in keeper.notes[0]


@pytest.mark.parametrize(("limit", "days"), [(30, 7), (10, 5), (1, 1), (0, 0), (2**40, 7)])
def test_the_warning_comes_a_week_or_half_the_limit_before(keeper: Keeper, limit: int, days: int) -> None:
    keeper.declare("team")
    keeper.commit(40)
    keeper.keep(max_hold_days=limit)
    with closing(open_home(keeper.home).store) as store:
        plan = holds.plan(keeper.home, keeper.config, store, MESSAGES, NOW)
    assert plan.warn_days == days
    assert all(held.until >= TODAY <= date.max for held in (*plan.held, *plan.overdue))


# After retention


@pytest.mark.hazard(74)
def test_an_emptied_lake_and_a_lost_state_reuse_no_sequence(keeper: Keeper) -> None:
    keeper.commit(40, 39, 38)
    highest = max(each[SEQ] for each in read_lake(keeper.home, DATASET))
    keeper.retain()
    assert keeper.messages() == []
    for path in keeper.home.root.glob("state*"):
        path.unlink()
    with closing(open_home(keeper.home).store) as store, store.reading() as connection:
        assert flushes.next_seq(connection) > highest
    keeper.commit(0)
    assert [each[SEQ] > highest for each in read_lake(keeper.home, DATASET)] == [True]


def test_a_lost_state_recovers_after_the_newest_rows_were_dropped(keeper: Keeper) -> None:
    destination = keeper.declare("team")
    messages = keeper.commit(0)
    messages += keeper.commit(40)
    keeper.remember()
    keeper.deliver()
    keeper.retain()
    for path in keeper.home.root.glob("state*"):
        path.unlink()
    assert [report.status for report in keeper.deliver()] == ["ok"]
    messages += keeper.commit(0)
    assert [report.status for report in keeper.deliver()] == ["ok"]
    assert sorted(destination.arrived()) == sorted(messages)


@pytest.mark.hazard(84)
def test_an_import_starts_at_the_first_day_kept(keeper: Keeper) -> None:
    keeper.commit(40)
    keeper.retain()
    window = kept_window(Window(None, None), keeper.retained_from)
    assert window.since == f"{days_ago(30)}T00:00:00.000000Z"


def test_the_watermark_of_a_stream_with_dropped_rows_stays(keeper: Keeper) -> None:
    destination = keeper.declare("team")
    old = keeper.commit(40)
    keeper.deliver()
    keeper.retain()
    new = keeper.commit(0)
    reports = keeper.deliver()
    assert [report.status for report in reports] == ["ok"]
    assert destination.arrived() == old + new
    with closing(open_home(keeper.home).store) as store, store.reading() as connection:
        (stream,) = streams.all_streams(connection)
        assert stream.watermark == flushes.high_water(connection)[DATASET]["claude"]


@pytest.mark.hazard(39)
def test_rows_compacted_with_older_ones_are_held_for_their_full_time(keeper: Keeper) -> None:
    """They arrived nine days after the other rows of their day and would be dropped with them a day later."""
    keeper.declare("team")
    keeper.keep(max_hold_days=10)
    keeper.commit(40)
    keeper.retain()
    (late,) = keeper.commit(40)
    keeper.retain(later(9))
    SmallFiles(keeper.home).compact(force=True)
    keeper.retain(later(10))
    assert late in keeper.messages()
    keeper.retain(later(19))
    assert keeper.messages() == []


def test_a_clock_that_jumped_ahead_drops_nothing(keeper: Keeper) -> None:
    """A clock in another decade must neither empty the lake nor advance the first day kept."""
    messages = keeper.commit(40, 0)
    report = keeper.retain(later(4000))
    assert keeper.messages() == messages
    assert "the clock may be wrong" in report.reasons[0]
    assert keeper.retain().rows_expired == 1
