"""`hyp query overview` without an engine: its layout, and an empty home."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from hypaware.cli.overview import OverviewStyle, format_short, render_overview
from hypaware.home import Home
from hypaware.query.overview import TOKENS, empty_overview
from tests.unit.cli.conftest import Ran

Run = Callable[..., Ran]


def counts(messages: int, **more: int) -> dict[str, int]:
    plain = {"sessions": 1, "messages": messages, "parts": messages, "tool_calls": 2, **dict.fromkeys(TOKENS, 0)}
    return {**plain, "output_tokens": 1234 * messages, **more}


def document(**changed: Any) -> dict[str, Any]:
    return {
        "since": None,
        "first_day": "2026-11-14",
        "last_day": "2026-11-15",
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


def test_an_overview_shows_totals_tokens_days_projects_models_and_tools() -> None:
    assert lines() == [
        "2 sessions, 30 messages, 2 tool calls, 2026-11-14 to 2026-11-15",
        "",
        "Tokens",
        "input           0",
        "output        37k  ▏",
        "cache read   5.6M  ████████████",
        "cache write     0",
        "reasoning      70  ▏",
        "",
        "                                                             cache  cache",
        "Days        messages                sessions  input  output   read  write",
        "2026-11-14        10  ██████               1      0     12k      0      0",
        "2026-11-15        20  ████████████         1      0     25k      0      0",
        "",
        "                                                                cache  cache",
        "Projects       messages                sessions  input  output   read  write",
        "/home/dev/web        20  ████████████         1      0     25k      0      0",
        "(unknown)            10  ██████               1      0     12k      0      0",
        "",
        "                                                        cache  cache",
        "Models           messages                input  output   read  write  reasoning",
        "claude-opus-5-5        30  ████████████      0     37k      0      0          0",
        "",
        "Tools  calls                errors",
        "Bash   1,200  ████████████       3",
        "Read       3  ▏                  0",
    ]


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


def test_an_empty_home_is_reported_with_the_next_command(hyp: Run, home: Home) -> None:
    home.root.mkdir()

    code, out, _ = hyp("query", "overview")

    assert code == 0
    assert "Nothing is recorded yet." in out
    assert "hyp backfill" in out
    assert not home.engine.exists()


def test_an_empty_window_is_reported(hyp: Run, home: Home) -> None:
    home.root.mkdir()

    code, out, _ = hyp("query", "overview", "--days", "7")

    assert code == 0
    assert out.startswith("Nothing is recorded since 2")


def test_an_empty_home_as_json_is_one_empty_document(hyp: Run, home: Home) -> None:
    home.root.mkdir()

    code, out, _ = hyp("query", "overview", "--json")

    assert code == 0
    assert json.loads(out) == empty_overview()
    assert json.loads(out)["totals"] == {
        "sessions": 0,
        "messages": 0,
        "parts": 0,
        "tool_calls": 0,
        **dict.fromkeys(TOKENS, 0),
    }


@pytest.mark.parametrize("days", ["0", "-1", "many", "99999999"])
def test_an_invalid_number_of_days_is_wrong_usage(hyp: Run, days: str) -> None:
    assert hyp("query", "overview", "--days", days)[0] == 2
