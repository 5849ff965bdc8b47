"""`hyp usage`: groupings, prices, time zones, and the line for a status bar."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hypaware.cli import columns, usage
from hypaware.home import Home
from tests.support.index_home import OPUS, SONNET, make_home, prompt, response
from tests.unit.cli.conftest import Ran

Run = Callable[..., Ran]
MILLION = {"output_tokens": 1_000_000}


def rows(hyp: Run, *options: str) -> dict[Any, float | None]:
    code, out, _ = hyp("usage", "--json", *options)
    assert code == 0
    return {each["key"]: each["cost_usd"] for each in json.loads(out)["rows"]}


@pytest.fixture(autouse=True)
def zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")


def record(home: Home) -> None:
    make_home(
        home.root,
        prompt(1, "Hello", at="2026-10-31T22:30:00Z"),
        response(2, at="2026-10-31T22:30:00Z", usage=MILLION),
        response(3, at="2026-10-31T23:30:00Z", usage=MILLION, model=SONNET, cwd="/srv/web"),
        response(4, at="2026-11-02T12:00:00Z", usage=MILLION, session_id="b", client_name="codex", model="new"),
    )


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("day", {"2026-10-31": 20.0, "2026-11-01": 15.0, "2026-11-02": None}),
        ("week", {"2026-W44": 35.0, "2026-W45": None}),
        ("month", {"2026-10": 20.0, "2026-11": 15.0}),
        ("project", {"/home/dev/web": 20.0, "/srv/web": 15.0}),
        ("model", {OPUS: 20.0, SONNET: 15.0, "new": None}),
        ("client", {"claude": 35.0, "codex": None}),
        ("session", {"session-1": 35.0, "b": None}),
    ],
)
def test_usage_is_added_up_by_the_users_days_and_by_everything_else(
    hyp: Run, home: Home, by: str, expected: dict[str, float | None]
) -> None:
    record(home)

    assert rows(hyp, "--by", by) == expected


def test_days_are_those_of_the_given_zone(hyp: Run, home: Home) -> None:
    record(home)

    assert list(rows(hyp, "--timezone", "UTC")) == ["2026-10-31", "2026-11-02"]
    assert list(rows(hyp, "--timezone", "Asia/Tokyo")) == ["2026-11-01", "2026-11-02"]
    assert list(rows(hyp, "--by", "machine")) == [json.loads(hyp("sessions", "--json")[1])["sessions"][0]["machine"]]


def test_the_document_names_zone_prices_and_models_without_a_price(hyp: Run, home: Home) -> None:
    record(home)

    found = json.loads(hyp("usage", "--json", "--limit", "1")[1])

    assert (found["by"], found["timezone"], found["prices_as_of"]) == ("day", "Europe/Berlin", "2026-11-15")
    assert [row["key"] for row in found["rows"]] == ["2026-11-02"]
    assert found["total"] == {
        "sessions": 2,
        "tokens": {"input": 0, "output": 3_000_000, "cache_read": 0, "cache_write": 0, "reasoning": 0},
        "cost_usd": 35.0,
        "unpriced_models": ["new"],
    }


def test_the_table_ends_with_the_total_and_the_date_of_the_prices(hyp: Run, home: Home) -> None:
    record(home)

    lines = hyp("usage", "--by", "model")[1].splitlines()

    assert lines[0].split() == ["model", "sessions", "input", "output", "cache", "read", "cache", "write", "cost"]
    assert lines[-3].split()[::6] == ["total", "$35.00+"]
    assert lines[-1] == (
        "API list prices of 2026-11-15; without new, for which there is no price (usage.prices in the config adds one)"
    )


@pytest.mark.parametrize(
    ("by", "shown", "kept"),
    [("day", "2026-11-02", "newest of 3 days"), ("session", "session-", "most expensive of 2 sessions")],
)
def test_a_truncated_table_says_that_it_is_and_its_total_counts_everything(
    hyp: Run, home: Home, monkeypatch: pytest.MonkeyPatch, by: str, shown: str, kept: str
) -> None:
    record(home)
    monkeypatch.setattr(columns, "terminal_width", lambda: 80)
    monkeypatch.setattr(usage, "_ON_TERMINAL", 1)

    code, out, err = hyp("usage", "--by", by)

    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:3]] == [shown, "total"]
    assert out.splitlines()[2].split()[-1] == "$35.00+"
    assert err == f"showing only the 1 {kept}; to see all: --limit 0\n"
    assert hyp("usage", "--by", by, "--limit", "0")[2] == ""


def test_on_a_terminal_sessions_have_their_titles_and_the_beginning_of_their_ids(
    hyp: Run, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(home)
    monkeypatch.setattr(columns, "terminal_width", lambda: 60)

    lines = hyp("usage", "--by", "session")[1].splitlines()

    assert lines[0].split()[:3] == ["session", "title", "input"]
    assert lines[1].split()[:2] == ["session-", "Hello"]
    assert lines[2].split()[:2] == ["b", "-"]
    assert lines[3].split()[:2] == ["total", "0"]
    assert "title" not in hyp("usage", "--by", "session", "--json")[1]


def test_the_users_own_prices_are_used(hyp: Run, home: Home) -> None:
    record(home)
    (home.root / "mine.json").write_text(
        json.dumps({"as_of": "2026-11-16", "models": {"new": {"input": 1, "output": 2}}})
    )
    home.config.write_text('version = 1\n[usage]\nprices = "mine.json"\n')

    found = json.loads(hyp("usage", "--by", "model", "--json")[1])

    assert found["prices_as_of"] == "2026-11-16"
    assert found["total"]["cost_usd"] == 2.0
    assert found["total"]["unpriced_models"] == [OPUS, SONNET]


def test_invalid_prices_are_an_error(hyp: Run, home: Home) -> None:
    record(home)
    home.config.write_text('version = 1\n[usage]\nprices = "none.json"\n')

    code, out, _ = hyp("usage", "--json")

    assert (code, json.loads(out)["error"]["kind"]) == (1, "config")


@pytest.mark.parametrize("command", ["usage", "sessions"])
def test_in_an_empty_home_the_import_is_named_unless_a_filter_is_given(hyp: Run, home: Home, command: str) -> None:
    make_home(home.root)

    assert hyp(command)[2] == "to import the session history on this machine: hyp backfill\n"
    assert hyp(command, "--since", "7d")[2] == ""


def test_without_a_home_usage_names_the_setup(hyp: Run, home: Home) -> None:
    code, _, err = hyp("usage")

    assert (code, err) == (3, f"error: no home at {home.root}\ntry: hyp setup\n")
    assert not home.root.exists()


@pytest.mark.parametrize("options", [["--by", "hour"], ["--statusline", "--json"], ["--statusline", "--by", "day"]])
def test_wrong_options_are_wrong_usage(hyp: Run, options: list[str]) -> None:
    assert hyp("usage", *options)[0] == 2


def statusline(home: Home, status: str | None) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "hypaware.cli", "usage", "--statusline"],
        input=status,
        stdin=subprocess.DEVNULL if status is None else None,
        capture_output=True,
        text=True,
        env={**os.environ, "HYP_HOME": str(home.root)},
    )
    return done.returncode, done.stdout, done.stderr


def test_a_status_line_shows_the_session_today_and_this_month(home: Home) -> None:
    now = datetime.now(UTC)
    long_ago = (now - timedelta(days=70)).isoformat()
    make_home(
        home.root,
        response(1, at=now.isoformat(), usage=MILLION, session_id="current"),
        response(2, at=now.isoformat(), usage=MILLION, session_id="other", model=SONNET),
        response(3, at=long_ago, usage=MILLION, session_id="current"),
    )

    assert statusline(home, '{"session_id": "current", "cost": {"total_cost_usd": 1}}') == (
        0,
        "$40.00 session | $35.00 today | $35.00 this month\n",
        "",
    )
    assert statusline(home, '{"session_id": "new", "cost": {"total_cost_usd": 1.5}}')[1].startswith("$1.50 session | ")
    assert statusline(home, None)[1] == "$35.00 today | $35.00 this month\n"


def test_a_month_without_usage_has_cost_nothing_in_the_status_line(home: Home) -> None:
    make_home(home.root, response(1, at=(datetime.now(UTC) - timedelta(days=70)).isoformat(), usage=MILLION))

    assert statusline(home, None)[1] == "$0.00 today | $0.00 this month\n"


@pytest.mark.parametrize("status", ["", "{", "[]", '{"session_id": 3}', '{"session_id": "x", "cost": "much"}', "\0"])
def test_a_status_line_survives_any_input(home: Home, status: str) -> None:
    make_home(home.root)

    code, out, err = statusline(home, status)

    assert (code, err, len(out.splitlines())) == (0, "", 1)


def test_a_status_line_is_empty_if_there_is_no_home_or_it_is_broken(home: Home) -> None:
    assert statusline(home, "{}") == (0, "", "")
    assert not home.root.exists()
    make_home(home.root)
    home.config.write_text("not toml")
    assert statusline(home, "{}") == (0, "", "")
