"""Where streams stand, and whether a round would have anything to do: told from the state alone."""

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
from hypaware.export import configured, status
from hypaware.export.schedule import next_round
from hypaware.export.sink import SinkType
from hypaware.export.standing import FAILED_AGAIN, HELD_AGAIN
from hypaware.home import Home
from hypaware.state import flushes, streams
from tests import light_life
from tests.rows import rows
from tests.standing_home import DATASET, StandingHome, key

NOW = datetime(2026, 11, 15, 7, 2, 30, tzinfo=UTC)


@pytest.fixture
def standing(home: Home) -> StandingHome:
    return StandingHome(home)


def shown(standing: StandingHome, now: datetime | None = None) -> dict[tuple[str, str], dict[str, Any]]:
    """The status of each stream by sink and source."""
    with standing.store() as store:
        found = status.report(standing.home, standing.config, store, now or datetime.now(UTC))
    return {(each.state.key.sink, each.state.key.source): each.as_json() for each in found}


def is_idle(standing: StandingHome, *sinks: str) -> bool:
    with standing.store() as store:
        return status.idle(standing.home, standing.config, store, sinks or ("archive",)) is not None


def due_at(standing: StandingHome, now: datetime, **how: bool) -> datetime | None:
    with standing.store() as store:
        return status.due_at(standing.home, standing.config, store, "archive", now, **how)


@pytest.fixture
def settled(standing: StandingHome, tmp_path: Path) -> StandingHome:
    """One sink, two sources, everything delivered."""
    standing.declare(archive=tmp_path / "archive")
    standing.recorded(claude=10, codex=12)
    for source, watermark in (("claude", 10), ("codex", 12)):
        standing.delivered(key(source=source), watermark)
    return standing


def test_a_stream_is_there_before_its_first_round_with_everything_still_to_go(
    standing: StandingHome, tmp_path: Path
) -> None:
    standing.declare(archive=tmp_path / "archive")
    light_life.append(standing.home, [*rows(6), *rows(3, start=6, client_name="codex")])
    light_life.flush(standing.home)
    found = shown(standing)
    claude, codex = found["archive", "claude"], found["archive", "codex"]
    assert (claude["watermark"], claude["high_water"], claude["lag_rows"], claude["exported_rows"]) == (0, 6, 6, 0)
    assert (codex["watermark"], codex["high_water"], codex["lag_rows"]) == (0, 9, 3)
    assert [claude[name] for name in ("pending", "updated_at", "last_success_at", "last_error", "held")] == [None] * 5
    assert claude["lag_seconds"] >= 0
    assert claude["address"] == standing.address()


def test_the_lag_counts_rows_and_not_sequences_and_is_as_old_as_the_oldest_commit_behind_it(
    standing: StandingHome, tmp_path: Path
) -> None:
    standing.declare(archive=tmp_path / "archive")
    for start in (0, 10, 20):
        light_life.append(standing.home, [*rows(2, start=start), *rows(8, start=start + 2, client_name="codex")])
        light_life.flush(standing.home)
    standing.delivered(key(), 10)
    with standing.change() as connection:
        second = connection.exec_driver_sql("SELECT finished_at FROM flushes WHERE seq_after = 10").scalar()
    finished = datetime.fromisoformat(str(second))
    found = shown(standing, finished + timedelta(minutes=3))["archive", "claude"]
    assert (found["watermark"], found["high_water"], found["lag_rows"]) == (10, 22, 4)
    assert found["lag_seconds"] == 180
    assert shown(standing, finished - timedelta(hours=1))["archive", "claude"]["lag_seconds"] == 0, "a clock went back"


def test_a_stream_without_lag_opens_no_lake(settled: StandingHome) -> None:
    found = shown(settled)["archive", "claude"]
    assert (found["lag_rows"], found["lag_seconds"], found["watermark"]) == (0, 0, 10)
    assert found["last_success_at"] is not None
    assert not settled.home.lake.exists()


def test_the_status_tells_what_is_under_way_and_what_is_in_the_way(settled: StandingHome) -> None:
    settled.recorded(claude=40)
    settled.planned(key(), 20, 30, 40, acked=1)
    settled.buried(key(), "letter-1", 5)
    with settled.change() as connection:
        streams.failed(connection, key(), "no answer", NOW + timedelta(minutes=1), 3)
        streams.hold(connection, key(source="codex"), streams.ELSEWHERE, "it points elsewhere")
    found = shown(settled, NOW)
    claude, codex = found["archive", "claude"], found["archive", "codex"]
    assert claude["pending"] == {"after": 10, "last": 40, "chunks_total": 3, "chunks_acked": 1}
    assert (claude["exported_rows"], claude["dead_letters"], claude["last_error"]) == (10, 1, "no answer")
    assert claude["retry_at"] == NOW + timedelta(minutes=1)
    assert claude["next_round"] == datetime(2026, 11, 15, 7, 5, tzinfo=UTC)
    assert (codex["held"], codex["last_error"]) == ("elsewhere", "it points elsewhere")
    assert (codex["dead_letters"], codex["pending"]) == (0, None)


def test_a_stream_that_the_config_no_longer_has_is_still_shown(settled: StandingHome, tmp_path: Path) -> None:
    settled.declare(other=tmp_path / "other")
    found = shown(settled)
    assert found["archive", "claude"]["removed"] is True
    assert found["archive", "claude"]["next_round"] is None
    assert found["archive", "claude"]["watermark"] == 10
    assert "removed" not in found["other", "claude"]
    assert found["other", "claude"]["watermark"] == 0


def test_a_watermark_that_nobody_knows_is_not_shown_as_a_number(standing: StandingHome, tmp_path: Path) -> None:
    standing.declare(archive=tmp_path / "archive")
    standing.recorded(claude=10, codex=5)
    standing.delivered(key(source="codex"), None)
    with standing.change() as connection:
        streams.lost_memory(connection)
    standing.delivered(key(), None)
    found = shown(standing)
    assert found["archive", "claude"]["watermark"] is None
    assert found["archive", "codex"]["watermark"] == 0, "nothing was ever sent of it"


def test_a_broken_kind_of_sink_is_shown_and_hides_no_other(settled: StandingHome, tmp_path: Path) -> None:
    def no_address(_settings: object) -> str:
        raise RuntimeError("the map is torn")

    settled.declare(archive=tmp_path / "archive", team=tmp_path / "team")
    text = settled.home.config.read_text().replace('[sinks.team]\nkind = "blob"', '[sinks.team]\nkind = "forward"')
    text = text.replace(f'destination = "{tmp_path / "team"}"', 'url = "https://team.example"')
    settled.home.config.write_text(text)
    with configured.also(SinkType("forward", "broken", no_address, lambda _: pytest.fail("it is not made"))):
        found = shown(settled)
        assert "the map is torn" in found["team", "claude"]["last_error"]
        assert found["archive", "claude"]["last_error"] is None
        assert not is_idle(settled, "team")
        assert is_idle(settled, "archive")
        with settled.store() as store, pytest.raises(HypError, match="the map is torn"):
            status.due_at(settled.home, settled.config, store, "team", NOW)


def test_a_round_with_nothing_new_is_known_to_have_nothing_to_do(settled: StandingHome) -> None:
    assert is_idle(settled)
    assert due_at(settled, NOW) is None


@pytest.mark.hazard(91)
def test_a_stream_is_idle_by_its_own_high_water_whatever_other_sources_do(settled: StandingHome) -> None:
    settled.recorded(codex=5000)
    with settled.store() as store:
        assert status.idle(settled.home, settled.config, store, ["archive"]) is None
        found = {each.state.key.source: each for each in status.report(settled.home, settled.config, store, NOW)}
    assert found["claude"].state.is_idle
    assert not found["codex"].state.is_idle


@pytest.mark.hazard(24)
def test_two_sinks_of_one_kind_stand_apart(settled: StandingHome, tmp_path: Path) -> None:
    settled.declare(archive=tmp_path / "archive", second=tmp_path / "second")
    settled.delivered(key("second"), 4)
    settled.delivered(key("second", "codex"), 12)
    found = shown(settled)
    assert (found["archive", "claude"]["watermark"], found["second", "claude"]["watermark"]) == (10, 4)
    assert is_idle(settled, "archive")
    assert not is_idle(settled, "second")
    assert not is_idle(settled, "archive", "second")


def _news(standing: StandingHome) -> None:
    standing.recorded(claude=11)


def _a_new_source(standing: StandingHome) -> None:
    standing.recorded(gemini=13)


def _an_intent(standing: StandingHome) -> None:
    standing.recorded(claude=11)
    standing.planned(key(), 11)


def _rows_in_the_spool(standing: StandingHome) -> None:
    light_life.append(standing.home, rows(1))


def _a_flush_left_unfinished(standing: StandingHome) -> None:
    with standing.change() as connection:
        flushes.reserve_blocks(connection, DATASET, 5)


def _another_destination(standing: StandingHome) -> None:
    standing.declare(archive=standing.home.root.parent / "elsewhere")


def _a_hold(standing: StandingHome) -> None:
    with standing.change() as connection:
        streams.hold(connection, key(), streams.HISTORY, "its user must say")


def _a_lake_that_was_rolled_back(standing: StandingHome) -> None:
    with standing.change() as connection:
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
def test_anything_that_a_round_should_look_at_keeps_it_from_being_idle(
    settled: StandingHome, happens: Callable[[StandingHome], None]
) -> None:
    happens(settled)
    assert not is_idle(settled)


def test_an_idle_round_imports_nothing_heavy_and_starts_nothing(settled: StandingHome) -> None:
    script = (
        "import sys\nfrom hypaware import config\nfrom hypaware.export.status import idle\n"
        "from hypaware.home import Home\nfrom hypaware.opening import open_home\n"
        "home = Home.from_environment()\nstore = open_home(home).store\n"
        "assert idle(home, config.load(home), store, ['archive']) is not None\nstore.close()\n"
        "print(*({'pyspark', 'py4j', 'pyarrow', 'aiohttp', 'obstore'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"HYP_HOME": str(settled.home.root), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
    assert not settled.home.engine.exists()
    assert not settled.home.lake.exists()


def test_a_stream_that_waits_is_due_when_it_was_told_and_another_ones_news_at_once(settled: StandingHome) -> None:
    later = datetime.now(UTC) + timedelta(minutes=10)
    now = datetime.now(UTC) + timedelta(minutes=1)
    settled.recorded(claude=11)
    with settled.change() as connection:
        streams.failed(connection, key(), "busy", later, 1)
    assert due_at(settled, now) == later
    assert due_at(settled, now, config_changed=True) == later, "a destination's wish is kept"
    assert due_at(settled, later + timedelta(seconds=1)) == later + timedelta(seconds=1)
    settled.recorded(codex=13)
    assert due_at(settled, now) == now


def test_a_stream_that_failed_or_is_held_is_looked_at_now_and_then_and_when_the_config_is_new(
    settled: StandingHome,
) -> None:
    settled.recorded(claude=11)
    with settled.change() as connection:
        streams.failed(connection, key(), "the token is wrong", None, 0)
    written = settled.stream(key()).updated_at
    assert written
    soon = written + timedelta(seconds=1)
    assert due_at(settled, soon) == written + FAILED_AGAIN
    assert due_at(settled, soon, config_changed=True) == soon
    with settled.change() as connection:
        streams.hold(connection, key(), streams.HISTORY, "its user must say")
    written = settled.stream(key()).updated_at
    assert written
    soon = written + timedelta(seconds=1)
    assert due_at(settled, soon) == written + HELD_AGAIN
    assert due_at(settled, soon, config_changed=True) == soon


def test_a_clock_that_went_back_makes_no_stream_wait_for_a_time_that_was_meant_otherwise(
    settled: StandingHome,
) -> None:
    settled.recorded(claude=11)
    with settled.change() as connection:
        streams.failed(connection, key(), "busy", datetime.now(UTC) + timedelta(minutes=1), 1)
    a_year_ago = datetime.now(UTC) - timedelta(days=365)
    assert due_at(settled, a_year_ago) == a_year_ago


def test_nothing_is_due_for_a_sink_that_the_lake_has_no_rows_for(standing: StandingHome, tmp_path: Path) -> None:
    config: Config = standing.declare(archive=tmp_path / "archive")
    assert list(config.sinks) == ["archive"]
    assert is_idle(standing)
    assert due_at(standing, NOW) is None


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
def test_the_next_round_is_by_cron_in_utc(schedule: str, following: str) -> None:
    elsewhere = NOW.astimezone(tz=None)
    assert next_round(schedule, elsewhere) == datetime.fromisoformat(following).replace(tzinfo=UTC)
