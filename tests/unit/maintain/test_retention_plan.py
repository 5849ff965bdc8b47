"""Retention: which days are dropped, which rows are held, and which warnings are given."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import date, timedelta

import pytest

from hypaware.backfill.survey import clip_to_retention
from hypaware.clients.reader import TimeWindow
from hypaware.config import Config, RetentionConfig
from hypaware.errors import Cancelled
from hypaware.export import destination_change
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.iceberg.metadata import DataFile
from hypaware.lake.table import TableChange
from hypaware.maintain import retention, retention_plan
from hypaware.maintain.retention_plan import PendingDeliveries, is_retention_due, retention_status
from hypaware.model import datasets
from hypaware.model.datasets import SEQ
from hypaware.state import dead_letters, flushes, streams
from hypaware.state.dead_letters import DeadLetter
from hypaware.state.home_opener import open_home
from hypaware.state.streams import StreamKey
from hypaware.testing import fault_injection
from hypaware.testing.folder_sink import FOLDER
from tests.support.commit_clock import date_last_commit, date_last_flush
from tests.support.compaction_cases import SmallFiles
from tests.support.light_home import DATASET
from tests.support.light_lake import LightLake, read_lake
from tests.support.retention_cases import NOW, TODAY, RetentionSite, days_ago, later

MESSAGES = datasets.get(DATASET)
EXCHANGES = replace(MESSAGES, name="ai_gateway_exchanges", retention_days=7)


@pytest.fixture
def site(home: Home) -> Iterator[RetentionSite]:
    with fault_injection.register_kind(FOLDER):
        yield RetentionSite(home)


def status_of(site: RetentionSite, days: int = 0) -> dict[str, object]:
    with closing(open_home(site.home).store) as store:
        (found,) = retention_status(site.home, site.config, store, later(days))
    return found


def due(site: RetentionSite, days: int = 0) -> bool:
    with closing(open_home(site.home).store) as store:
        return is_retention_due(site.home, site.config, store, MESSAGES, later(days))


# The retention period


def test_the_config_of_a_dataset_overrides_its_own_period_and_the_default() -> None:
    config = Config(retention=RetentionConfig(default_days=90, datasets={}))
    assert retention_plan.days_kept(config, MESSAGES) == 90
    assert retention_plan.days_kept(config, EXCHANGES) == 7
    configured_config = replace(config, retention=RetentionConfig(default_days=90, datasets={EXCHANGES.name: 0}))
    assert retention_plan.days_kept(configured_config, EXCHANGES) == 0
    assert retention_plan.first_day_kept(configured_config, EXCHANGES, NOW) is None
    assert retention_plan.first_day_kept(config, MESSAGES, NOW) == days_ago(90)
    endless = replace(config, retention=RetentionConfig(default_days=2**40))
    assert retention_plan.first_day_kept(endless, MESSAGES, NOW) is None


def test_whole_days_are_dropped_and_the_first_day_kept_stays(site: RetentionSite) -> None:
    _, _, *staying = site.commit(90, 31, 30, 29, 0)
    before = site.data_files()
    report = site.retain()
    assert site.messages() == staying
    assert (report.rows_expired, report.rows_held, report.errors) == (2, 0, [])
    assert report.reasons == [f"dropped 2 rows of 2 days before {days_ago(30)}"]
    assert site.data_files() == before, "no data file was written, changed or removed"
    assert site.retained_from == str(days_ago(30))


def test_a_dataset_kept_forever_is_not_changed(site: RetentionSite) -> None:
    site.configure(default_days=0)
    messages = site.commit(4000, 0)
    known = site.table
    assert not due(site)
    assert site.retain().as_json()["reason"] == "nothing to do"
    assert (site.messages(), site.table, site.retained_from) == (messages, known, None)


def test_all_due_days_are_dropped_in_one_commit(site: RetentionSite) -> None:
    for age in (80, 70, 60, 0):
        site.commit(age)
    snapshots = len(site.table.snapshots)
    assert due(site)
    site.retain()
    known = site.table
    assert len(known.snapshots) == snapshots + 1
    assert not due(site)
    site.retain()
    assert site.table.path == known.path


def test_the_first_day_kept_is_recorded_and_only_advances(site: RetentionSite) -> None:
    messages = site.commit(5)
    assert due(site), "imports need the first day kept"
    site.retain()
    first = site.table
    assert (site.retained_from, site.messages()) == (str(days_ago(30)), messages)
    site.retain()
    assert site.table.path == first.path
    assert not due(site, days=1), "the first day kept advances every day, which does not start an engine"
    site.configure(default_days=300)
    site.retain()
    assert site.retained_from == str(days_ago(30))
    site.configure(default_days=10)
    site.retain()
    assert site.retained_from == str(days_ago(10))
    assert site.table.floor == first.floor


def test_a_dry_run_reports_the_same_and_changes_nothing(site: RetentionSite) -> None:
    site.declare("team")
    site.commit(40, 0)
    site.commit(50, source="codex")
    site.deliver()
    site.commit(45)
    known, state = site.table, site.home.state.read_bytes()
    planned = site.retain(dry_run=True)
    assert (site.table, site.home.state.read_bytes()) == (known, state)
    done = site.retain()
    assert (planned.rows_expired, planned.rows_held) == (done.rows_expired, done.rows_held) == (2, 1)
    assert planned.held == done.held
    assert planned.reasons[0].replace("would drop", "dropped") == done.reasons[0]


def test_rows_without_a_time_are_kept_and_counted(site: RetentionSite, monkeypatch: pytest.MonkeyPatch) -> None:
    site.commit(40, 0)
    without_day = [
        replace(file, day=None) if file.day == TODAY else file for file in metadata.iter_live_files(site.table)
    ]
    monkeypatch.setattr(metadata, "iter_cached_files", lambda _table: iter(without_day))
    report = site.retain()
    assert (report.rows_expired, report.rows_without_time) == (1, 1)


def test_nothing_is_dropped_after_the_deadline_or_a_cancellation(site: RetentionSite) -> None:
    messages = site.commit(40, 0)
    report = site.retain(deadline=time.monotonic() - 1)
    assert (report.rows_expired, site.messages()) == (0, messages)
    assert report.reasons == ["1 row due to be dropped, but the time was up"]

    def cancelled() -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        site.retain(check_cancelled=cancelled)
    assert site.messages() == messages


def test_a_clock_that_went_back_drops_nothing(site: RetentionSite) -> None:
    messages = site.commit(4000, 0)
    report = site.retain(later(-2))
    assert site.messages() == messages
    assert "the clock may be wrong" in report.reasons[0]
    assert site.notes == report.reasons == status_of(site, -2)["warnings"]
    assert not due(site, days=-2)
    assert due(site)


# Holds for sinks


@pytest.mark.hazard(39)
def test_rows_are_held_until_every_sink_has_them(site: RetentionSite) -> None:
    site.declare("quick")
    slow = site.declare("slow")
    messages = site.commit(40, 35, 0)
    site.deliver("quick")
    report = site.retain()
    assert (report.rows_expired, report.rows_held, site.messages()) == (0, 2, messages)
    assert report.held[0] == {
        "source": "claude",
        "day": str(days_ago(40)),
        "rows": 1,
        "sinks": ["slow"],
        "since": str(TODAY),
        "until": str(TODAY + timedelta(days=30)),
    }
    assert report.reasons == ["2 rows of 2 days due to be dropped, held for slow"]
    assert not due(site)
    site.deliver("slow")
    assert due(site)
    assert site.retain().rows_expired == 2
    assert (site.messages(), slow.arrived()) == (messages[2:], messages)
    assert status_of(site)["held"] == []


def test_only_files_above_the_watermark_of_their_source_are_held(site: RetentionSite) -> None:
    site.declare("team")
    site.commit(40)
    site.deliver()
    held = site.commit(40)
    held += site.commit(40, source="codex")
    report = site.retain()
    assert (report.rows_expired, report.rows_held, site.messages()) == (1, 2, held)


def test_a_sink_without_the_dataset_or_a_removed_sink_holds_nothing(site: RetentionSite) -> None:
    site.declare("other", datasets=("something_else",))
    site.declare("gone")
    site.commit(40)
    assert site.retain().rows_held == 1
    del site.sinks["gone"]
    assert site.retain().rows_expired == 1


def test_nothing_is_held_with_wait_for_sinks_off(site: RetentionSite) -> None:
    site.declare("team")
    site.commit(40)
    site.configure(wait_for_sinks=False)
    assert site.retain().rows_expired == 1
    assert (site.drops(), site.notes) == ([], [])


def test_a_sink_with_a_new_destination_has_received_nothing_there(site: RetentionSite) -> None:
    site.declare("team")
    messages = site.commit(40)
    site.deliver()
    destination = site.declare("team", directory="elsewhere")
    site.deliver()
    assert site.retain().held[0]["sinks"] == ["team"]
    with closing(open_home(site.home).store) as store:
        destination_change.resend(site.home, site.config, store, "team")
    assert site.retain().rows_held == 1
    site.deliver()
    assert site.retain().rows_expired == 1
    assert destination.arrived() == messages


def test_rows_are_held_for_a_sink_whose_kind_is_not_installed(site: RetentionSite) -> None:
    site.declare("team")
    site.commit(40)
    site.deliver()
    site.sinks["team"] = replace(site.sinks["team"], kind="not-installed")
    assert site.retain().held[0]["sinks"] == ["team"]


def test_rows_of_a_pending_intent_are_held(site: RetentionSite) -> None:
    """A stream that lost its watermark has an intent that starts at the beginning."""
    site.declare("team")
    site.commit(40, 39)
    site.deliver()
    with closing(open_home(site.home).store) as store, store.transaction() as connection:
        streams.save_intent(connection, streams.Intent(StreamKey("team", DATASET, "claude"), 1, 2, ()))
    report = site.retain()
    assert (report.rows_expired, report.rows_held) == (1, 1)


def test_rows_with_a_dead_letter_are_held(site: RetentionSite) -> None:
    site.declare("team")
    site.commit(40, 39)
    first, second = sorted(each[SEQ] for each in read_lake(site.home, DATASET))
    site.deliver()
    key = StreamKey("team", DATASET, "claude")
    letters = [
        DeadLetter("bare", key, "i", first - 1, first, 1, "odd", "2026-11-15T07:00:00+00:00"),
        DeadLetter("packed", key, "i", second - 1, second, 1, "odd", "2026-11-15T07:00:00+00:00"),
    ]
    with closing(open_home(site.home).store) as store, store.transaction() as connection:
        for letter, body in zip(letters, (None, b"rows"), strict=True):
            dead_letters.add_letter(connection, letter, body)
    report = site.retain()
    assert (report.rows_expired, report.rows_held) == (0, 2), "a dead letter's copy may be lost with the state"
    with closing(open_home(site.home).store) as store, store.transaction() as connection:
        dead_letters.drop_letter(connection, "bare")
    assert site.retain().rows_expired == 1
    assert [each[SEQ] for each in read_lake(site.home, DATASET)] == [second]


def test_a_file_without_sequences_is_held_for_every_sink() -> None:
    file = DataFile(
        path=Home.from_environment().root, bytes=1, rows=2, source="claude", max_seq=2, min_seq=1, sequenced=2
    )
    deliveries = PendingDeliveries(("team",), {("team", "claude"): 9})
    assert deliveries.sinks_for(file) == ()
    assert (
        deliveries.sinks_for(replace(file, max_seq=None))
        == deliveries.sinks_for(replace(file, sequenced=1))
        == ("team",)
    )
    assert PendingDeliveries().sinks_for(replace(file, max_seq=None)) == ()


def test_rows_of_an_unfinished_flush_stay_for_recovery(site: RetentionSite) -> None:
    first, second = site.commit(40) + site.commit(40)
    with closing(open_home(site.home).store) as store, store.transaction() as connection:
        connection.execute("UPDATE flushes SET status = 'reserved' WHERE seq_last = 2")
    assert site.retain().rows_expired == 1
    assert site.messages() == [second]
    site.commit(0)
    assert site.retain().rows_expired == 1
    assert first not in site.messages()


# The length of a hold


def test_rows_held_too_long_are_dropped_after_a_warning_and_recorded(site: RetentionSite) -> None:
    site.declare("team")
    site.commit(60, 59, 0)
    site.retain()
    assert site.notes == []
    site.retain(later(22))
    assert (site.notes, status_of(site, 22)["warnings"]) == ([], [])
    site.retain(later(23))
    end = TODAY + timedelta(days=30)
    warning = (
        f"warning: 2 rows of {DATASET} (claude, {days_ago(60)} to {days_ago(59)}) have not been delivered to team and "
        f"will be dropped on {end}; to deliver them first, run: hyp export team"
    )
    assert site.notes == [warning] == status_of(site, 23)["warnings"]
    assert not due(site, days=29)
    assert len(site.messages()) == 3
    assert due(site, days=30)
    report = site.retain(later(30))
    assert (report.rows_expired, len(site.messages())) == (2, 1)
    assert "are dropped now" in site.notes[-1]
    configured_config = status_of(site, 30)["dropped_undelivered"]
    assert configured_config == [
        {"source": "claude", "day": str(days_ago(age)), "rows": 1, "sinks": ["team"], "at": later(30).isoformat()}
        for age in (60, 59)
    ]
    assert all(drop.landed for drop in site.drops())
    site.deliver()
    assert site.retain(later(30)).rows_expired == 0


def test_a_hold_starts_when_rows_are_first_found_due(site: RetentionSite) -> None:
    """Rows are not dropped without a warning if retention is turned on late or history arrives late."""
    site.declare("team")
    site.configure(default_days=0)
    site.commit(900)
    site.retain()
    site.configure(default_days=30)
    site.retain(later(5))
    site.commit(900)
    assert [held["since"] for held in site.retain(later(20)).held] == [
        str(TODAY + timedelta(days=5)),
        str(TODAY + timedelta(days=20)),
    ]
    assert site.retain(later(35)).rows_expired == 1
    assert site.retain(later(49)).rows_held == 1
    assert site.retain(later(50)).rows_expired == 1
    assert len(site.drops()) == 2


def test_a_finished_hold_does_not_shorten_the_next_one(site: RetentionSite) -> None:
    site.declare("team")
    site.commit(40)
    site.retain()
    site.deliver()
    site.commit(40)
    report = site.retain(later(29))
    assert (report.rows_expired, report.rows_held) == (1, 1)
    assert report.held[0]["since"] == str(TODAY + timedelta(days=29))


def test_with_a_limit_of_zero_days_nothing_is_held(site: RetentionSite) -> None:
    site.declare("team")
    site.commit(40)
    site.configure(max_hold_days=0)
    assert site.retain().rows_expired == 1
    assert len(site.drops()) == 1
    assert "is dropped now" in site.notes[0]


@pytest.mark.parametrize(("limit", "days"), [(30, 7), (10, 5), (1, 1), (0, 0), (2**40, 7)])
def test_the_warning_comes_a_week_or_half_the_limit_before(site: RetentionSite, limit: int, days: int) -> None:
    site.declare("team")
    site.commit(40)
    site.configure(max_hold_days=limit)
    with closing(open_home(site.home).store) as store:
        plan = retention_plan.plan_retention(site.home, site.config, store, MESSAGES, NOW)
    assert plan.warn_days == days
    assert all(held.until >= TODAY <= date.max for held in (*plan.held, *plan.overdue))


# After retention


@pytest.mark.hazard(74)
def test_an_emptied_lake_and_a_lost_state_reuse_no_sequence(site: RetentionSite) -> None:
    site.commit(40, 39, 38)
    highest = max(each[SEQ] for each in read_lake(site.home, DATASET))
    site.retain()
    assert site.messages() == []
    for path in site.home.root.glob("state*"):
        path.unlink()
    with closing(open_home(site.home).store) as store, store.reading() as connection:
        assert flushes.next_sequence(connection) > highest
    site.commit(0)
    assert [each[SEQ] > highest for each in read_lake(site.home, DATASET)] == [True]


def test_a_lost_state_recovers_after_the_newest_rows_were_dropped(site: RetentionSite) -> None:
    destination = site.declare("team")
    messages = site.commit(0)
    messages += site.commit(40)
    site.record_incarnation()
    site.deliver()
    site.retain()
    for path in site.home.root.glob("state*"):
        path.unlink()
    assert [report.status for report in site.deliver()] == ["ok"]
    messages += site.commit(0)
    assert [report.status for report in site.deliver()] == ["ok"]
    assert sorted(destination.arrived()) == sorted(messages)


@pytest.mark.hazard(84)
def test_an_import_starts_at_the_first_day_kept(site: RetentionSite) -> None:
    site.commit(40)
    site.retain()
    window = clip_to_retention(TimeWindow(None, None), site.retained_from)
    assert window.since == f"{days_ago(30)}T00:00:00.000000Z"


def test_the_watermark_of_a_stream_with_dropped_rows_stays(site: RetentionSite) -> None:
    destination = site.declare("team")
    old = site.commit(40)
    site.deliver()
    site.retain()
    new = site.commit(0)
    reports = site.deliver()
    assert [report.status for report in reports] == ["ok"]
    assert destination.arrived() == old + new
    with closing(open_home(site.home).store) as store, store.reading() as connection:
        (stream,) = streams.list_streams(connection)
        assert stream.watermark == flushes.load_high_water(connection)[DATASET]["claude"]


@pytest.mark.hazard(39)
def test_rows_compacted_with_older_ones_are_held_for_their_full_time(site: RetentionSite) -> None:
    """They arrived nine days after the other rows of their day and would be dropped with them a day later."""
    site.declare("team")
    site.configure(max_hold_days=10)
    site.commit(40)
    site.retain()
    (late,) = site.commit(40)
    site.retain(later(9))
    SmallFiles(site.home).compact(force=True)
    site.retain(later(10))
    assert late in site.messages()
    site.retain(later(19))
    assert site.messages() == []


def test_a_clock_that_jumped_ahead_drops_nothing(site: RetentionSite) -> None:
    """A clock in another decade must neither empty the lake nor advance the first day kept."""
    messages = site.commit(40, 0)
    report = site.retain(later(4000))
    assert site.messages() == messages
    assert "the clock may be wrong" in report.reasons[0]
    assert site.retain().rows_expired == 1


@pytest.mark.hazard(102)
def test_a_commit_under_a_clock_that_is_years_ahead_drops_nothing(site: RetentionSite) -> None:
    """The commit itself is dated by the wrong clock, so it cannot confirm it."""
    for age in (3, 2, 1):
        site.commit(age)
        date_last_commit(site.home, DATASET, later(-age))
    site.commit(-4000)
    date_last_commit(site.home, DATASET, later(4000))
    messages = site.messages()
    report = site.retain(later(4000))
    assert site.messages() == messages
    assert "the clock may be wrong" in report.reasons[0]
    assert site.retained_from is None
    assert not due(site, days=4000)


@pytest.mark.hazard(102)
def test_a_clock_is_trusted_again_after_a_week_of_commits(site: RetentionSite) -> None:
    site.commit(200)
    date_last_commit(site.home, DATASET, later(-200))
    for age in (6, 5, 4, 3, 2, 1):
        site.commit(age)
        date_last_commit(site.home, DATASET, later(-age))
    assert site.retain().rows_expired == 0, "after a long break, six days are too few"
    site.commit(0)
    assert site.retain().rows_expired == 1


@pytest.mark.hazard(102)
def test_retention_continues_after_one_commit_in_the_future(site: RetentionSite) -> None:
    site.commit(40, 9, 8)
    site.commit(3)
    date_last_commit(site.home, DATASET, later(4000))
    assert site.retain().rows_expired == 0, "five days of commits and rows are too few"
    site.commit(2, 1)
    assert site.retain().rows_expired == 1


@pytest.mark.hazard(102)
def test_a_first_day_in_the_future_is_revoked(site: RetentionSite) -> None:
    """It was set under a clock that was ahead; imports must not be refused until then."""
    site.commit(40, 3)
    site.commit(0)
    before = sorted(read_lake(site.home, DATASET), key=lambda each: int(each[SEQ]))
    dropped = [file for file in metadata.iter_live_files(site.table) if file.day == days_ago(3)]
    with closing(LightLake(site.home)) as lake:
        properties = {metadata.RETAINED_FROM_PROPERTY: str(days_ago(-4000))}
        lake.table(MESSAGES).replace_files(TableChange("retain", dropped, properties=properties))
    assert site.retained_from is None, "imports are not refused"
    site.retain()
    assert site.table.properties[metadata.RETAINED_FROM_PROPERTY] == str(days_ago(30))
    site.numbers = 1
    site.commit(3)
    after = sorted(read_lake(site.home, DATASET), key=lambda each: int(each[SEQ]))
    assert [(each[SEQ], each["part_id"]) for each in after] == [(each[SEQ], each["part_id"]) for each in before[1:]]


@pytest.mark.hazard(102)
def test_days_that_a_wrong_clock_dropped_are_readmitted_on_request(site: RetentionSite) -> None:
    """A clock that was ahead by less than the period sets a first day that looks like that of a shorter period."""
    (old, lost, _) = site.commit(40, 20, 0)
    before = {each["message_id"]: each[SEQ] for each in read_lake(site.home, DATASET)}
    site.configure(default_days=5)
    site.retain()
    site.configure(default_days=30)
    assert site.retained_from == str(days_ago(5))
    report = site.retain(step=retention.readmit_days)
    assert report.reasons == [f"reset the first day kept, which was {days_ago(5)}"]
    assert site.retained_from == str(days_ago(30))
    site.numbers = 1
    site.commit(20)
    after = {each["message_id"]: each[SEQ] for each in read_lake(site.home, DATASET)}
    assert after == {message: seq for message, seq in before.items() if message != old}, f"{lost} is back"
    assert "no day" in site.retain(step=retention.readmit_days).reasons[0], "a second time has nothing to do"


@pytest.mark.hazard(102)
def test_the_days_of_commits_are_remembered(site: RetentionSite) -> None:
    """A commit under a clock that is ahead must not forget all earlier ones."""
    for age in (80, 80, 70):
        site.commit(0)
        date_last_flush(site.home, DATASET, later(-age))
    site.commit(0)
    with closing(open_home(site.home).store) as store, store.reading() as connection:
        assert [time.date() for time in flushes.commit_times(connection)] == [days_ago(80), days_ago(70), TODAY]
        assert len(connection.rows("SELECT id FROM flushes")) == 3
