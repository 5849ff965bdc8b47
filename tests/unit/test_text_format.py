"""Formatting of numbers, sizes and times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from hypaware import text

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("number", "said"),
    [(0, "0 bytes"), (1, "1 byte"), (1023, "1,023 bytes"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (1024**2, "1.0 MiB"),
     (34 * 1024**3, "34 GiB"), (1023.6 * 1024**2, "1.0 GiB"), (5 * 1024**5, "5,120 TiB")],
)  # fmt: skip
def test_size_uses_the_right_unit(number: float, said: str) -> None:
    assert text.format_size(number) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.1, "a moment"), (1, "1 second"), (89, "89 seconds"), (90, "2 minutes"), (3600, "60 minutes"),
     (3 * 3600, "3 hours"), (2 * 86_400, "2 days"), (400 * 86_400, "400 days")],
)  # fmt: skip
def test_duration_uses_the_right_unit(seconds: float, said: str) -> None:
    assert text.format_duration(seconds) == said


def test_time_is_relative_to_now_or_unknown() -> None:
    assert text.format_ago((NOW - timedelta(hours=3)).isoformat(), NOW) == "3 hours ago"
    assert text.format_ago("2026-11-15T11:58:00", NOW) == "2 minutes ago"
    assert text.format_ago("2026-11-16T00:00:00Z", NOW) == "at 2026-11-16 00:00 (UTC), in the future"
    assert text.format_ago(None, NOW) == text.format_ago("yesterday", NOW) == "at an unknown time"
    assert (text.format_count(1, "row"), text.format_count(1200, "row")) == ("1 row", "1,200 rows")
