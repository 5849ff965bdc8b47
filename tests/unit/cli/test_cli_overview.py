"""`hyp overview`: its layout, its options, and an empty home."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from hypaware.cli.columns import format_short
from hypaware.cli.overview import OverviewStyle, render_overview
from hypaware.home import Home
from tests.support.index_home import make_home, prompt, response
from tests.unit.cli.conftest import Ran

Run = Callable[..., Ran]
TOKENS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")


def counts(messages: int, **more: Any) -> dict[str, Any]:
    plain = {"sessions": 1, "messages": messages, "parts": messages, "tool_calls": 2, **dict.fromkeys(TOKENS, 0)}
    cost = {"cost_usd": messages / 10, "unpriced_models": []}
    return {**plain, "output_tokens": 1234 * messages, **cost, **more}


def document(**changed: Any) -> dict[str, Any]:
    return {
        "since": None,
        "until": None,
        "timezone": "UTC",
        "first_day": "2026-11-14",
        "last_day": "2026-11-15",
        "prices_as_of": "2026-11-01",
        "totals": counts(30, sessions=2, cache_read_tokens=5_600_000, reasoning_tokens=70),
        "days": [{"day": "2026-11-14", **counts(10)}, {"day": "2026-11-15", **counts(20)}],
        "projects": [{"cwd": "/home/dev/web", **counts(20)}, {"cwd": None, **counts(10)}],
        "clients": [{"client": "claude", **counts(30)}],
        "models": [{"model": "claude-opus-5-5", **counts(30)}],
        "tools": [{"tool": "Bash", "calls": 1200, "errors": 3}, {"tool": "Read", "calls": 3, "errors": 0}],
        **changed,
    }


PLAIN = OverviewStyle()


def lines(look: OverviewStyle = PLAIN, **changed: Any) -> list[str]:
    return render_overview(document(**changed), look).splitlines()


def test_an_overview_shows_totals_tokens_cost_days_projects_models_and_tools() -> None:
    assert lines() == [
        "2 sessions, 30 messages, 2 tool calls, 2026-11-14 to 2026-11-15",
        "Tokens: 37k output, 5.6M cache read, 70 reasoning",
        "Cost: $3.00 (API list prices of 2026-11-01)",
        "",
        "                                                                    cache  cache",
        "Days        messages                sessions   cost  input  output   read  write",
        "2026-11-14        10  ██████               1  $1.00      0     12k      0      0",
        "2026-11-15        20  ████████████         1  $2.00      0     25k      0      0",
        "",
        "                                                                       cache  cache",
        "Projects       messages                sessions   cost  input  output   read  write",
        "/home/dev/web        20  ████████████         1  $2.00      0     25k      0      0",
        "(unknown)            10  ██████               1  $1.00      0     12k      0      0",
        "",
        "                                                                         cache  cache",
        "Models           messages                sessions   cost  input  output   read  write  reasoning",
        "claude-opus-5-5        30  ████████████         1  $3.00      0     37k      0      0          0",
        "",
        "Tools  calls                errors",
        "Bash   1,200  ████████████       3",
        "Read       3  ▏                  0",
    ]


def test_models_without_a_price_are_named_and_their_cost_is_not_shown_as_zero() -> None:
    new = {"cost_usd": None, "unpriced_models": ["new-model"]}
    shown = lines(
        totals=counts(30, sessions=2, unpriced_models=["new-model"]),
        models=[{"model": "new-model", **counts(30, **new)}],
    )

    assert shown[2].startswith("Cost: $3.00+ (API list prices of 2026-11-01; without new-model,")
    assert any(line.startswith("new-model ") and "  ?  " in line for line in shown)


@pytest.mark.parametrize("height", [24, 30, 40, 60])
def test_an_overview_fits_on_the_screen_if_three_rows_of_each_table_do(height: int) -> None:
    many: dict[str, Any] = {
        "days": [{"day": f"2026-10-{day:02}", **counts(day)} for day in range(1, 31)],
        "projects": [{"cwd": f"/home/dev/{number}", **counts(40 - number)} for number in range(25)],
        "models": [{"model": f"model-{number}", **counts(40 - number)} for number in range(25)],
        "tools": [{"tool": f"tool-{number}", "calls": 40 - number, "errors": 0} for number in range(25)],
    }
    shown = lines(OverviewStyle(width=120, height=height), **many)

    assert len(shown) < max(height, 32)
    assert any(line.startswith("tool-2 ") for line in shown)


def test_clients_are_listed_only_if_there_are_several() -> None:
    both = [{"client": "claude", **counts(20)}, {"client": "codex", **counts(10)}]

    assert not any(line.startswith("Clients") for line in lines())
    assert any(line.startswith("codex ") for line in lines(clients=both))


def test_long_tables_are_truncated_and_count_the_omitted_rows() -> None:
    days = [{"day": f"2026-10-{day:02}", **counts(day)} for day in range(1, 31)]
    projects = [{"cwd": f"/home/dev/{number}", **counts(number + 1)} for number in range(25)]

    shown = lines(days=days, projects=projects)

    assert "and 16 earlier days (see --json)" in shown
    assert "and 15 more projects (see --json)" in shown
    assert [line[:10] for line in shown if line.startswith("2026-10")] == [f"2026-10-{day}" for day in range(17, 31)]


def test_a_limit_holds_for_each_table_on_a_screen_of_any_height() -> None:
    days = [{"day": f"2026-10-{day:02}", **counts(day)} for day in range(1, 31)]
    projects = [{"cwd": f"/home/dev/{number}", **counts(number + 1)} for number in range(25)]

    two, all_rows = (lines(OverviewStyle(height=10, rows=rows), days=days, projects=projects) for rows in (2, 0))

    assert [line[:10] for line in two if line.startswith("2026-10")] == ["2026-10-29", "2026-10-30"]
    assert "and 23 more projects (see --json)" in two
    assert sum(line.startswith(("2026-10", "/home/dev/")) for line in all_rows) == 30 + 25


def test_a_terminal_without_unicode_gets_ascii_bars() -> None:
    shown = render_overview(document(), OverviewStyle(width=80, unicode=False))

    assert shown.isascii()
    assert "############" in shown


def test_unicode_support_is_derived_from_the_encoding() -> None:
    def stream(encoding: str) -> io.TextIOWrapper:
        return io.TextIOWrapper(io.BytesIO(), encoding=encoding)

    assert OverviewStyle.of(stream("utf-8")) == OverviewStyle(width=None, unicode=True)
    assert not OverviewStyle.of(stream("latin-1")).unicode
    assert not OverviewStyle.of(stream("ascii")).unicode


def test_a_long_path_is_truncated_at_its_beginning_and_other_names_at_their_end() -> None:
    path, model = "/home/dev/" + "deep/" * 20 + "project", "model-" * 20
    shown = lines(
        OverviewStyle(width=100), projects=[{"cwd": path, **counts(1)}], models=[{"model": model, **counts(1)}]
    )

    assert any(line.startswith("…") and "/deep/project  " in line for line in shown)
    assert any(line.startswith("model-model-") and "…  " in line for line in shown)


@pytest.mark.hazard(62)
def test_stored_names_are_escaped_for_the_terminal() -> None:
    shown = render_overview(document(projects=[{"cwd": "/home/\x1b]0;evil\x07\n", **counts(1)}]), OverviewStyle())

    assert "\x1b" not in shown
    assert "/home/\\x1b]0;evil\\x07\\n" in shown


@given(st.lists(st.tuples(st.text(max_size=60), st.integers(1, 10**9)), min_size=1, max_size=4), st.integers(60, 200))
def test_no_line_is_wider_than_the_terminal(named: list[tuple[str, int]], width: int) -> None:
    projects = [{"cwd": name, **counts(number)} for name, number in named]

    shown = lines(OverviewStyle(width=width), projects=projects)

    assert max(map(cell_len, shown[1:])) <= width


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        *((0, "0"), (999, "999"), (1000, "1.0k"), (1049, "1.0k"), (9_949, "9.9k"), (9_950, "10k"), (35_400, "35k")),
        *((999_499, "999k"), (999_500, "1.0M"), (11_165_769_863, "11G"), (-1500, "-1.5k"), (10**19, "10,000P")),
    ],
)
def test_large_numbers_are_abbreviated(number: int, shown: str) -> None:
    assert format_short(number) == shown


NAMES = [["overview"], ["query", "overview"]]


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_home_is_reported_with_the_next_command(hyp: Run, home: Home, name: list[str]) -> None:
    home.root.mkdir()

    code, out, _ = hyp(*name)

    assert code == 0
    assert "Nothing is recorded yet." in out
    assert "hyp backfill" in out
    assert not home.engine.exists()


def test_an_empty_window_is_reported(hyp: Run, home: Home) -> None:
    home.root.mkdir()

    code, out, _ = hyp("overview", "--days", "7")

    assert code == 0
    assert out.startswith("Nothing that is recorded matches.")


def test_an_empty_home_as_json_is_one_empty_document(hyp: Run, home: Home) -> None:
    home.root.mkdir()

    code, out, _ = hyp("query", "overview", "--json")

    assert code == 0
    assert json.loads(out)["totals"] == {
        "sessions": 0,
        "messages": 0,
        "parts": 0,
        "tool_calls": 0,
        **dict.fromkeys(TOKENS, 0),
        "cost_usd": None,
        "unpriced_models": [],
    }


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("days", ["0", "-1", "many", "99999999"])
def test_an_invalid_number_of_days_is_wrong_usage(hyp: Run, days: str, name: list[str]) -> None:
    assert hyp(*name, "--days", days)[0] == 2


def test_days_cannot_be_combined_with_another_beginning(hyp: Run, home: Home) -> None:
    home.root.mkdir()

    assert hyp("overview", "--days", "7", "--since", "3d")[0] == 2
    assert hyp("overview", "--days", "1", "--until", "2020-01-01")[0] == 2


@pytest.mark.parametrize("name", NAMES)
def test_days_are_the_users_days_and_include_today(
    hyp: Run, home: Home, monkeypatch: pytest.MonkeyPatch, name: list[str]
) -> None:
    monkeypatch.setenv("TZ", "Pacific/Apia")
    from hypaware.index.time_zones import find_zone

    midnight = datetime.now(find_zone()).replace(hour=0, minute=0, second=0, microsecond=0)
    before, after = midnight - timedelta(days=1, microseconds=1), midnight - timedelta(days=1)
    make_home(home.root, *(response(n, at=time.astimezone(UTC).isoformat()) for n, time in enumerate((before, after))))

    found = json.loads(hyp(*name, "--days", "2", "--json")[1])

    assert [each["day"] for each in found["days"]] == [after.date().isoformat()]
    assert (found["since"], found["timezone"]) == (after.date().isoformat(), "Pacific/Apia")


@pytest.mark.parametrize("name", NAMES)
def test_a_limit_keeps_the_newest_days_and_the_largest_projects(hyp: Run, home: Home, name: list[str]) -> None:
    make_home(home.root, *(response(day, at=f"2026-11-{day:02}T08:00:00Z", cwd=f"/p{day // 2}") for day in (1, 2, 3)))

    found = json.loads(hyp(*name, "--limit", "1", "--json")[1])

    assert [each["day"] for each in found["days"]] == ["2026-11-03"]
    assert [(each["cwd"], each["messages"]) for each in found["projects"]] == [("/p1", 2)]
    assert found["totals"]["messages"] == 3
    assert len(json.loads(hyp(*name, "--limit", "0", "--json")[1])["days"]) == 3


def test_the_overview_takes_the_filters_of_all_reading_commands(hyp: Run, home: Home) -> None:
    make_home(
        home.root,
        prompt(1, "Hello", at="2026-11-14T08:00:00Z"),
        response(2, at="2026-11-14T08:01:00Z", usage={"output_tokens": 1_000_000}),
        response(3, at="2026-11-14T08:02:00Z", session_id="b", client_name="codex", cwd="/home/dev/shop"),
    )

    found = json.loads(
        hyp("query", "overview", "--project", "web", "--client", "claude", "--model", "claude", "--json")[1]
    )
    code, out, err = hyp("overview", "--client", "cursor")

    assert (found["totals"]["messages"], found["totals"]["cost_usd"]) == (1, 20.0)
    assert (code, err) == (0, "no recorded session has the client cursor. Known: claude, codex.\n")
    assert out.startswith("Nothing that is recorded matches.")
