"""The filters of the reading commands: what the options mean, and what is wrong usage."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hypaware.errors import UsageError
from hypaware.index.filters import Filters, explain_no_match, make_filters, project_of, split_window, to_datetime
from hypaware.index.schema import SLOT
from tests.support.index_home import index_of, response

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)


def window(
    since: str | datetime | None = None, until: str | datetime | None = None, zone: str = "UTC"
) -> list[str | None]:
    made = make_filters(since=since, until=until, timezone=zone, now=NOW)
    return [None if each is None else to_datetime(each).isoformat() for each in (made.since, made.until)]


def test_a_day_begins_and_ends_in_the_time_zone() -> None:
    assert window("2026-11-14", "2026-11-14", "Europe/Berlin") == [
        "2026-11-13T23:00:00+00:00",
        "2026-11-14T22:59:59.999999+00:00",
    ]
    # The night in which the clock goes back is an hour longer.
    assert window("2026-10-25", "2026-10-25", "Europe/Berlin") == [
        "2026-10-24T22:00:00+00:00",
        "2026-10-25T22:59:59.999999+00:00",
    ]


def test_a_time_without_an_offset_is_in_the_time_zone() -> None:
    assert window("2026-11-14T08:00", "2026-11-14T08:00Z", "Asia/Kolkata") == [
        "2026-11-14T02:30:00+00:00",
        "2026-11-14T08:00:00+00:00",
    ]
    assert window(datetime(2026, 11, 14, 8), datetime(2026, 11, 14, 8, tzinfo=UTC), "Asia/Kolkata") == window(
        "2026-11-14T08:00", "2026-11-14T08:00Z", "Asia/Kolkata"
    )


def test_an_age_counts_from_now() -> None:
    assert window("7d", "12h") == [(NOW - timedelta(days=7)).isoformat(), (NOW - timedelta(hours=12)).isoformat()]


@pytest.mark.parametrize(("since", "until"), [("1d", "2d"), ("2026-11-15", "2026-11-14")])
def test_a_beginning_after_the_end_is_wrong_usage(since: str, until: str) -> None:
    with pytest.raises(UsageError, match=f"--since {since} is after --until {until}"):
        window(since, until)


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "7", "2026-11", "0001-01-01T00:00+23:00"])
def test_a_text_that_is_no_date_is_wrong_usage(text: str) -> None:
    with pytest.raises(UsageError, match="--since"):
        window(text)


def test_a_window_is_split_into_whole_and_cut_slots() -> None:
    def split(since: int | None, until: int | None) -> tuple[int, int, tuple[int, ...]]:
        return tuple(split_window(Filters(since=since, until=until)))  # type: ignore[return-value]

    assert split(4 * SLOT, 6 * SLOT - 1) == (4, 5, ())
    assert split(4 * SLOT + 1, 6 * SLOT) == (5, 5, (4, 6))
    assert split(4 * SLOT + 1, 4 * SLOT + 2)[2] == (4,)
    assert split(4 * SLOT, 4 * SLOT) == (4, 3, (4,))
    assert split(4 * SLOT, None)[2] == ()


def test_a_project_that_looks_like_a_path_is_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    monkeypatch.chdir(tmp_path / "web")
    monkeypatch.setenv("HOME", str(tmp_path))

    assert make_filters(project=".").project == str(tmp_path / "web")
    assert make_filters(project="../shop/").project == str(tmp_path / "shop")
    assert make_filters(project="~/web").project == str(tmp_path / "web")
    assert make_filters(project="web").project == "web"


@pytest.mark.parametrize(
    ("cwd", "project"),
    [
        *(
            ("/home/dev/web", "web"),
            ("/home/dev/web/", "web"),
            ("/", "/"),
            ("C:\\Users\\dev\\web", "web"),
            (None, None),
        ),
    ],
)
def test_a_project_is_the_last_folder_of_a_path(cwd: str | None, project: str | None) -> None:
    assert project_of(cwd) == project


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"client": "codx"}, "no recorded session has the client codx. Did you mean codex? Known: claude, codex."),
        ({"model": "gpt"}, "no recorded session has the model gpt. Known: claude-opus-5-5."),
        ({"project": "wbe"}, "no recorded session is in a project wbe. Did you mean /home/dev/web?"),
        ({"machine": "gw-0"}, "no recorded session has the machine gw-0. Known: gw-"),
    ],
)
def test_a_filter_that_matches_nothing_says_what_exists(tmp_path: Path, given: dict[str, str], message: str) -> None:
    rows = [
        response(1, at="2026-11-14T08:00:00Z"),
        response(2, at="2026-11-14T08:00:00Z", client_name="codex", session_id="b"),
    ]
    with index_of(tmp_path, *rows) as index:
        assert (explain_no_match(index.connection, make_filters(**given)) or "").startswith(message)  # type: ignore[arg-type]
        assert explain_no_match(index.connection, make_filters(client="claude", model="claude-", project="web")) is None


def test_the_explanation_mentions_that_there_are_no_rows_at_all(tmp_path: Path) -> None:
    with index_of(tmp_path) as index:
        explained = explain_no_match(index.connection, make_filters(client="claude"))

    assert explained == "no recorded session has the client claude. Nothing is recorded yet."
