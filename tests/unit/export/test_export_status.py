"""The status of streams, and whether a round has anything to do, from the state alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hypaware.config import Config
from hypaware.errors import HypError
from hypaware.export import status
from hypaware.export.sink import SinkType
from hypaware.export.sink_registry import next_round_at
from hypaware.export.status import FAILED_RETRY_DELAY, HELD_RETRY_DELAY
from hypaware.home import Home
from hypaware.state import flushes, streams
from hypaware.testing import fault_injection
from tests.support import light_home
from tests.support.delivery_home import DATASET, DeliveryHome, key
from tests.support.rows import rows

NOW = datetime(2026, 11, 15, 7, 2, 30, tzinfo=UTC)


@pytest.fixture
def deliveries(home: Home) -> DeliveryHome:
    return DeliveryHome(home)


def shown(deliveries: DeliveryHome, now: datetime | None = None) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the status of each stream by sink and source."""
    with deliveries.store() as store:
        found = status.read_statuses(deliveries.home, deliveries.config, store, now or datetime.now(UTC))
    return {(each.state.key.sink, each.state.key.source): each.as_json() for each in found}


def is_idle(deliveries: DeliveryHome, *sinks: str) -> bool:
    with deliveries.store() as store:
        return status.find_idle_streams(deliveries.home, deliveries.config, store, sinks or ("archive",)) is not None


def due_at(deliveries: DeliveryHome, now: datetime, **how: bool) -> datetime | None:
    with deliveries.store() as store:
        return status.next_due_time(deliveries.home, deliveries.config, store, "archive", now, **how)


@pytest.fixture
def idle_home(deliveries: DeliveryHome, tmp_path: Path) -> DeliveryHome:
    """A home with one sink and two sources, fully delivered."""
    deliveries.declare(archive=tmp_path / "archive")
    deliveries.recorded(claude=10, codex=12)
    for source, watermark in (("claude", 10), ("codex", 12)):
        deliveries.delivered(key(source=source), watermark)
    return deliveries


def test_a_stream_is_shown_before_its_first_round_with_its_full_lag(deliveries: DeliveryHome, tmp_path: Path) -> None:
    deliveries.declare(archive=tmp_path / "archive")
    light_home.append(deliveries.home, [*rows(6), *rows(3, start=6, client_name="codex")])
    light_home.flush(deliveries.home)
    found = shown(deliveries)
    claude, codex = found["archive", "claude"], found["archive", "codex"]
    assert (claude["watermark"], claude["high_water"], claude["lag_rows"], claude["exported_rows"]) == (0, 6, 6, 0)
    assert (codex["watermark"], codex["high_water"], codex["lag_rows"]) == (0, 9, 3)
    assert [claude[name] for name in ("pending", "updated_at", "last_success_at", "last_error", "held")] == [None] * 5
    assert claude["lag_seconds"] >= 0
    assert claude["address"] == deliveries.address()


def test_the_lag_counts_rows_and_has_the_age_of_the_oldest_undelivered_commit(
    deliveries: DeliveryHome, tmp_path: Path
) -> None:
    deliveries.declare(archive=tmp_path / "archive")
    for start in (0, 10, 20):
        light_home.append(deliveries.home, [*rows(2, start=start), *rows(8, start=start + 2, client_name="codex")])
        light_home.flush(deliveries.home)
    deliveries.delivered(key(), 10)
    with deliveries.change() as connection:
        second = connection.value("SELECT finished_at FROM flushes WHERE seq_after = 10")
    finished = datetime.fromisoformat(str(second))
    found = shown(deliveries, finished + timedelta(minutes=3))["archive", "claude"]
    assert (found["watermark"], found["high_water"], found["lag_rows"]) == (10, 22, 4)
    assert found["lag_seconds"] == 180
    assert shown(deliveries, finished - timedelta(hours=1))["archive", "claude"]["lag_seconds"] == 0, "clock set back"


def test_a_stream_without_lag_does_not_open_the_lake(idle_home: DeliveryHome) -> None:
    found = shown(idle_home)["archive", "claude"]
    assert (found["lag_rows"], found["lag_seconds"], found["watermark"]) == (0, 0, 10)
    assert found["last_success_at"] is not None
    assert not idle_home.home.lake.exists()


def test_the_status_shows_pending_chunks_errors_and_holds(idle_home: DeliveryHome) -> None:
    idle_home.recorded(claude=40)
    idle_home.planned(key(), 20, 30, 40, acked=1)
    idle_home.buried(key(), "letter-1", 5)
    with idle_home.change() as connection:
        streams.record_failure(connection, key(), "no answer", NOW + timedelta(minutes=1), 3)
        streams.hold_stream(connection, key(source="codex"), streams.HELD_ADDRESS_CHANGED, "it points elsewhere")
    found = shown(idle_home, NOW)
    claude, codex = found["archive", "claude"], found["archive", "codex"]
    assert claude["pending"] == {"after": 10, "last": 40, "chunks_total": 3, "chunks_acked": 1}
    assert (claude["exported_rows"], claude["dead_letters"], claude["last_error"]) == (10, 1, "no answer")
    assert claude["retry_at"] == NOW + timedelta(minutes=1)
    assert claude["next_round"] == datetime(2026, 11, 15, 7, 5, tzinfo=UTC)
    assert (codex["held"], codex["last_error"]) == ("elsewhere", "it points elsewhere")
    assert (codex["dead_letters"], codex["pending"]) == (0, None)


def test_a_removed_stream_is_still_shown(idle_home: DeliveryHome, tmp_path: Path) -> None:
    idle_home.declare(other=tmp_path / "other")
    found = shown(idle_home)
    assert found["archive", "claude"]["removed"] is True
    assert found["archive", "claude"]["next_round"] is None
    assert found["archive", "claude"]["watermark"] == 10
    assert "removed" not in found["other", "claude"]
    assert found["other", "claude"]["watermark"] == 0


def test_an_unknown_watermark_is_not_shown_as_a_number(deliveries: DeliveryHome, tmp_path: Path) -> None:
    deliveries.declare(archive=tmp_path / "archive")
    deliveries.recorded(claude=10, codex=5)
    deliveries.delivered(key(source="codex"), None)
    with deliveries.change() as connection:
        streams.mark_history_lost(connection)
    deliveries.delivered(key(), None)
    found = shown(deliveries)
    assert found["archive", "claude"]["watermark"] is None
    assert found["archive", "codex"]["watermark"] == 0, "no row of it was ever sent"


def test_a_broken_sink_kind_is_shown_and_does_not_hide_others(idle_home: DeliveryHome, tmp_path: Path) -> None:
    def no_address(_settings: object) -> str:
        raise RuntimeError("the map is torn")

    idle_home.declare(archive=tmp_path / "archive", team=tmp_path / "team")
    text = idle_home.home.config.read_text().replace('[sinks.team]\nkind = "blob"', '[sinks.team]\nkind = "forward"')
    text = text.replace(f'destination = "{tmp_path / "team"}"', 'url = "https://team.example"')
    idle_home.home.config.write_text(text)
    with fault_injection.register_kind(
        SinkType("forward", "broken", no_address, lambda _: pytest.fail("it is not made"))
    ):
        found = shown(idle_home)
        assert "the map is torn" in found["team", "claude"]["last_error"]
        assert found["archive", "claude"]["last_error"] is None
        assert not is_idle(idle_home, "team")
        assert is_idle(idle_home, "archive")
        with idle_home.store() as store, pytest.raises(HypError, match="the map is torn"):
            status.next_due_time(idle_home.home, idle_home.config, store, "team", NOW)


def test_a_round_without_new_rows_is_idle(idle_home: DeliveryHome) -> None:
    assert is_idle(idle_home)
    assert due_at(idle_home, NOW) is None


@pytest.mark.hazard(91)
def test_a_stream_is_idle_regardless_of_other_sources(idle_home: DeliveryHome) -> None:
    idle_home.recorded(codex=5000)
    with idle_home.store() as store:
        assert status.find_idle_streams(idle_home.home, idle_home.config, store, ["archive"]) is None
        found = {
            each.state.key.source: each for each in status.read_statuses(idle_home.home, idle_home.config, store, NOW)
        }
    assert found["claude"].state.is_idle
    assert not found["codex"].state.is_idle


@pytest.mark.hazard(24)
def test_two_sinks_of_one_kind_have_separate_status(idle_home: DeliveryHome, tmp_path: Path) -> None:
    idle_home.declare(archive=tmp_path / "archive", second=tmp_path / "second")
    idle_home.delivered(key("second"), 4)
    idle_home.delivered(key("second", "codex"), 12)
    found = shown(idle_home)
    assert (found["archive", "claude"]["watermark"], found["second", "claude"]["watermark"]) == (10, 4)
    assert is_idle(idle_home, "archive")
    assert not is_idle(idle_home, "second")
    assert not is_idle(idle_home, "archive", "second")


def _news(deliveries: DeliveryHome) -> None:
    deliveries.recorded(claude=11)


def _a_new_source(deliveries: DeliveryHome) -> None:
    deliveries.recorded(gemini=13)


def _an_intent(deliveries: DeliveryHome) -> None:
    deliveries.recorded(claude=11)
    deliveries.planned(key(), 11)


def _rows_in_the_spool(deliveries: DeliveryHome) -> None:
    light_home.append(deliveries.home, rows(1))


def _a_flush_left_unfinished(deliveries: DeliveryHome) -> None:
    with deliveries.change() as connection:
        flushes.reserve_range(connection, DATASET, 5)


def _another_destination(deliveries: DeliveryHome) -> None:
    deliveries.declare(archive=deliveries.home.root.parent / "elsewhere")


def _a_hold(deliveries: DeliveryHome) -> None:
    with deliveries.change() as connection:
        streams.hold_stream(connection, key(), streams.HELD_HISTORY_LOST, "its user must say")


def _a_lake_that_was_rolled_back(deliveries: DeliveryHome) -> None:
    with deliveries.change() as connection:
        flushes.lower_high_water(connection, DATASET, 8)


@pytest.mark.parametrize(
    "happens",
    [
        _news,
        _a_new_source,
        _an_intent,
        _rows_in_the_spool,
        _a_flush_left_unfinished,
        _another_destination,
        _a_hold,
        _a_lake_that_was_rolled_back,
    ],
)
def test_anything_to_do_makes_a_round_not_idle(
    idle_home: DeliveryHome, happens: Callable[[DeliveryHome], None]
) -> None:
    happens(idle_home)
    assert not is_idle(idle_home)


def test_an_idle_round_needs_no_heavy_import(idle_home: DeliveryHome) -> None:
    script = (
        "import sys\n"
        "from hypaware import config\n"
        "from hypaware.export.status import find_idle_streams\n"
        "from hypaware.home import Home\n"
        "from hypaware.state.home_opener import open_home\n"
        "home = Home.from_environment()\n"
        "store = open_home(home).store\n"
        "assert find_idle_streams(home, config.load(home), store, ['archive']) is not None\n"
        "store.close()\n"
        "print(*({'pyspark', 'py4j', 'pyarrow', 'aiohttp', 'obstore'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"HYP_HOME": str(idle_home.home.root), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
    assert not idle_home.home.engine.exists()
    assert not idle_home.home.lake.exists()


def test_a_waiting_stream_is_due_at_its_retry_time_and_a_stream_with_new_rows_immediately(
    idle_home: DeliveryHome,
) -> None:
    later = datetime.now(UTC) + timedelta(minutes=10)
    now = datetime.now(UTC) + timedelta(minutes=1)
    idle_home.recorded(claude=11)
    with idle_home.change() as connection:
        streams.record_failure(connection, key(), "busy", later, 1)
    assert due_at(idle_home, now) == later
    assert due_at(idle_home, now, config_changed=True) == later, "a Retry-After is respected"
    assert due_at(idle_home, later + timedelta(seconds=1)) == later + timedelta(seconds=1)
    idle_home.recorded(codex=13)
    assert due_at(idle_home, now) == now


def test_a_failed_or_held_stream_is_retried_later_and_immediately_after_a_config_change(
    idle_home: DeliveryHome,
) -> None:
    idle_home.recorded(claude=11)
    with idle_home.change() as connection:
        streams.record_failure(connection, key(), "the token is wrong", None, 0)
    written = idle_home.stream(key()).updated_at
    assert written
    soon = written + timedelta(seconds=1)
    assert due_at(idle_home, soon) == written + FAILED_RETRY_DELAY
    assert due_at(idle_home, soon, config_changed=True) == soon
    with idle_home.change() as connection:
        streams.hold_stream(connection, key(), streams.HELD_HISTORY_LOST, "its user must say")
    written = idle_home.stream(key()).updated_at
    assert written
    soon = written + timedelta(seconds=1)
    assert due_at(idle_home, soon) == written + HELD_RETRY_DELAY
    assert due_at(idle_home, soon, config_changed=True) == soon


def test_a_clock_set_back_does_not_delay_a_stream(
    idle_home: DeliveryHome,
) -> None:
    idle_home.recorded(claude=11)
    with idle_home.change() as connection:
        streams.record_failure(connection, key(), "busy", datetime.now(UTC) + timedelta(minutes=1), 1)
    a_year_ago = datetime.now(UTC) - timedelta(days=365)
    assert due_at(idle_home, a_year_ago) == a_year_ago


def test_a_sink_without_rows_in_the_lake_is_not_due(deliveries: DeliveryHome, tmp_path: Path) -> None:
    config: Config = deliveries.declare(archive=tmp_path / "archive")
    assert list(config.sinks) == ["archive"]
    assert is_idle(deliveries)
    assert due_at(deliveries, NOW) is None


@pytest.mark.parametrize(
    ("schedule", "following"),
    [
        ("* * * * *", "2026-11-15T07:03:00"),
        ("*/5 * * * *", "2026-11-15T07:05:00"),
        ("0 7 * * *", "2026-11-16T07:00:00"),
        ("0 0 20 * 1", "2026-11-16T00:00:00"),  # the 20th OR a Monday
        ("0 0 */7 * 2", "2026-11-17T00:00:00"),  # days 1, 8, 15 … OR a Tuesday
        ("0 0 * * 7", "2026-11-22T00:00:00"),
        ("30 3 29 2 *", "2028-02-29T03:30:00"),
    ],
)
def test_the_next_round_follows_cron_in_utc(schedule: str, following: str) -> None:
    elsewhere = NOW.astimezone(tz=None)
    assert next_round_at(schedule, elsewhere) == datetime.fromisoformat(following).replace(tzinfo=UTC)
