from __future__ import annotations

from contextlib import suppress
from datetime import UTC, date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.config import find_line, values
from hypaware.privacy import secret_rules


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2m", 120.0),
        ("15m", 900.0),
        ("1h", 3600.0),
        ("30s", 30.0),
        ("7d", 604800.0),
        ("250ms", 0.25),
    ],
)
def test_a_duration_is_read_as_seconds(text: str, seconds: float) -> None:
    assert values.DURATION.read(text) == seconds


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("", ""),
        ("2026-11-15", "2026-11-15T00:00:00+00:00"),
        (date(2026, 11, 15), "2026-11-15T00:00:00+00:00"),
        ("2026-11-15T08:00:00Z", "2026-11-15T08:00:00+00:00"),
        (datetime(2026, 11, 15, 8, tzinfo=UTC), "2026-11-15T08:00:00+00:00"),
    ],
)
def test_a_time_gets_a_zone_with_and_without_quotes(raw: object, text: str) -> None:
    assert values.MOMENT.read(raw) == text


@pytest.mark.parametrize("raw", ["yesterday", "7d", "2026-13-01", 20261115])
def test_an_invalid_time_is_rejected(raw: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        values.MOMENT.read(raw)


@pytest.mark.parametrize("text", ["", "m", "2", "-2m", "2w", "2m30s", "two minutes", "1e3s", "4000d", "1.5h"])
def test_an_invalid_duration_is_rejected(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        values.DURATION.read(text)


@pytest.mark.parametrize(
    ("raw", "count"),
    [("128MiB", 2**27), ("64KB", 64_000), ("1GiB", 2**30), ("5B", 5), ("10 mib", 10 * 2**20), (4096, 4096)],
)
def test_a_size_is_read_as_bytes(raw: object, count: int) -> None:
    assert values.SIZE.read(raw) == count


@pytest.mark.parametrize("raw", ["", "12", "1.5MiB", "-1KB", "MiB", 0, -1, True, 2.5, "3iB"])
def test_an_invalid_size_is_rejected(raw: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        values.SIZE.read(raw)


@given(st.integers(1, 10 * 365 * 86_400_000))
def test_a_duration_round_trips(milliseconds: int) -> None:
    seconds = milliseconds / 1000

    assert values.DURATION.read(values.format_duration(seconds)) == pytest.approx(seconds, rel=1e-9)


@given(st.integers(1, 2**62))
def test_a_size_round_trips(count: int) -> None:
    assert values.SIZE.read(values.format_size(count)) == count


@pytest.mark.parametrize(
    "schedule",
    [
        "* * * * *",
        "*/5 * * * *",
        "0 0 1 1 0",
        "59 23 31 12 7",
        "0,30 8-18/2 * * 1-5",
        "0 0 29 2 *",
        "0 0 30 2 1",
    ],
)
def test_a_five_field_schedule_is_accepted(schedule: str) -> None:
    assert values.SCHEDULE.read(schedule) == schedule


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        ("* * * *", "4 fields"),
        ("* * * * * *", "6 fields"),
        ("*  * * * *", "6 fields"),
        ("60 * * * *", "minute from 0 to 59"),
        ("* 24 * * *", "hour from 0 to 23"),
        ("* * 0 * *", "day of month from 1 to 31"),
        ("* * * 13 *", "month from 1 to 12"),
        ("* * * * 8", "day of week from 0 to 7"),
        ("5-1 * * * *", "minute from 0 to 59"),
        ("*/0 * * * *", "is 0"),
        ("5/10 * * * *", "needs a range"),
        ("* * * JAN *", "is not a month"),
        (", * * * *", "is not a minute"),
        ("@daily", "1 fields"),
        ("0 0 30 2 *", "no date matches it"),
        ("0 0 31 4,6,9,11 *", "no date matches it"),
    ],
)
def test_an_invalid_schedule_is_rejected_with_the_reason(schedule: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        values.check_schedule(schedule)


@given(st.text(alphabet="0123456789*/,- ", max_size=30))
def test_any_text_is_accepted_or_rejected_as_a_schedule(schedule: str) -> None:
    with suppress(ValueError):
        assert values.SCHEDULE.read(schedule) == schedule


def test_the_line_of_a_key_is_that_of_its_statement_not_of_its_value() -> None:
    text = 'a = 1\n# why\nlist = [\n  "x",\n  { y = 1 },\n]\n\n[t]\nk = """\nmore\n"""\nz.q = 1\n[[u]]\n[[u]]\nn = 2\n'

    assert find_line(text, ("a",)) == 1
    assert find_line(text, ("list",)) == 3
    assert find_line(text, ("list", 1, "y")) == 3
    assert find_line(text, ("t",)) == 8
    assert find_line(text, ("t", "k")) == 9
    assert find_line(text, ("t", "z", "q")) == 12
    assert find_line(text, ("u", 1)) == 14
    assert find_line(text, ("u", 1, "n")) == 15
    assert find_line(text, ("missing",)) is None


def test_every_secret_rule_can_be_disabled_by_name() -> None:
    names = {rule.kind for rule in secret_rules.TOKEN_RULES}
    names |= {getattr(secret_rules, name) for name in ["BEARER", "BASIC", "COOKIE", "AZURE_CLIENT", "PRIVATE_KEY"]}
    names |= {getattr(secret_rules, name) for name in ["URL_PASSWORD", "SIGNATURE", "PASSWORD", "ASSIGNED"]}
    assert names == set(values.SECRET_RULES)
