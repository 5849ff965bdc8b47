from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.backfill.request import resolve_window
from hypaware.clients.reader import TimeWindow
from hypaware.errors import UsageError

NOW = datetime(2026, 11, 15, 12, 30, tzinfo=UTC)


def window(
    since: str | None = None, until: str | None = None, retention_days: int | None = None, default_days: int = 0
) -> TimeWindow:
    return resolve_window(since, until, retention_days, default_days, NOW)


def test_without_dates_and_retention_the_window_is_unbounded() -> None:
    assert window() == TimeWindow(None, None)


@pytest.mark.parametrize(
    ("written", "moment"),
    [
        ("2026-11-01", "2026-11-01T00:00:00.000000Z"),
        ("20261101", "2026-11-01T00:00:00.000000Z"),
        ("2026-11-01T08:00", "2026-11-01T08:00:00.000000Z"),
        ("2026-11-01 08:00:00", "2026-11-01T08:00:00.000000Z"),
        ("2026-11-01T08:00:00.5Z", "2026-11-01T08:00:00.500000Z"),
        ("2026-11-01T08:00:00+02:00", "2026-11-01T06:00:00.000000Z"),
        ("30m", "2026-11-15T12:00:00.000000Z"),
        ("12h", "2026-11-15T00:30:00.000000Z"),
        ("7d", "2026-11-08T12:30:00.000000Z"),
        ("2w", "2026-11-01T12:30:00.000000Z"),
        ("0d", "2026-11-15T12:30:00.000000Z"),
        (" 7d ", "2026-11-08T12:30:00.000000Z"),
    ],
)
def test_a_date_is_iso_8601_or_an_age(written: str, moment: str) -> None:
    assert window(since=written).since == moment


@pytest.mark.parametrize(
    ("written", "moment"),
    [
        ("2026-11-01", "2026-11-01T23:59:59.999999Z"),
        ("2026-11-01T08:00", "2026-11-01T08:00:00.000000Z"),
        ("7d", "2026-11-08T12:30:00.000000Z"),
    ],
)
def test_until_a_day_includes_the_whole_day(written: str, moment: str) -> None:
    assert window(until=written).until == moment


def test_since_and_until_may_be_the_same_day() -> None:
    found = window(since="2026-11-01", until="2026-11-01")

    assert found.contains("2026-11-01T00:00:00.000000Z")
    assert found.contains("2026-11-01T23:59:59.999999Z")
    assert not found.contains("2026-10-31T23:59:59.999999Z")
    assert not found.contains("2026-11-02T00:00:00.000000Z")
    assert found.contains(None)


@pytest.mark.hazard(49)
@pytest.mark.parametrize(
    "written",
    [
        "",
        "yesterday",
        "7",
        "7D",
        "-7d",
        "1.5d",
        "7 d",
        "7y",
        "2026",
        "2026-11",
        "2026-W45",
        "2026-13-01",
        "2026-02-30",
        "2026-11-01T",
        "2026-11-01T25:00",
        "2026-11-01T08:00+99:00",
        "11/01/2026",
        "٢٠٢٦-11-01",
        "0001-01-01T00:00:00+14:00",
        "999999999w",
    ],
)
@pytest.mark.parametrize("option", ["since", "until"])
def test_an_invalid_date_is_rejected_and_named(option: str, written: str) -> None:
    with pytest.raises(UsageError, match=f"--{option}") as refused:
        window(since=written) if option == "since" else window(until=written)

    assert refused.value.exit_code == 2


@pytest.mark.hazard(49)
@pytest.mark.parametrize(
    ("since", "until"),
    [("2026-11-02", "2026-11-01"), ("1d", "2d"), ("2026-11-01T08:00:01Z", "2026-11-01T10:00:00+02:00")],
)
def test_since_after_until_is_rejected(since: str, until: str) -> None:
    with pytest.raises(UsageError, match=f"--since {since} is after".replace("+", r"\+")):
        window(since=since, until=until)


def test_the_later_of_since_and_retention_applies() -> None:
    assert window(retention_days=7).since == "2026-11-08T12:30:00.000000Z"
    assert window(since="30d", retention_days=7) == window(since="7d")
    assert window(since="3d", retention_days=7) == window(since="3d")


def test_the_configured_retention_applies_without_an_option() -> None:
    assert window(default_days=7) == window(since="7d")
    assert window(retention_days=30, default_days=7) == window(since="30d")
    assert window(retention_days=0, default_days=7) == TimeWindow(None, None)


def test_a_retention_beyond_the_year_1_is_unlimited() -> None:
    assert window(retention_days=10**12) == TimeWindow(None, None)
    assert window(retention_days=1_000_000) == TimeWindow(None, None)


@pytest.mark.hazard(49)
def test_a_negative_retention_is_rejected() -> None:
    with pytest.raises(UsageError, match="--retention-days is -1"):
        window(retention_days=-1)


def test_a_window_before_the_retention_period_is_rejected_with_a_repair() -> None:
    with pytest.raises(UsageError, match="--until 60d is before") as refused:
        window(until="60d", default_days=30)

    assert refused.value.repair == ("hyp backfill --retention-days 0",)
    assert window(until="60d", retention_days=0, default_days=30) == window(until="60d")


@given(st.text(max_size=30))
def test_any_text_is_parsed_to_canonical_form_or_rejected(written: str) -> None:
    try:
        found = window(since=written).since
    except UsageError:
        return
    assert found is not None
    assert datetime.fromisoformat(found).isoformat(timespec="microseconds") == found.replace("Z", "+00:00")
