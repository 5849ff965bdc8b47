"""The overview: its numbers are those of the commands, its links lead to the sessions behind them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from hypaware.cli import entry
from hypaware.home import Home
from hypaware.index.trends import sum_all_tokens
from hypaware.page.app import make_app
from hypaware.page.context import PageContext
from hypaware.page.numbers import format_amount, format_document_cost, format_percent
from hypaware.state.machines import read_machines
from hypaware.text import escape_cell
from tests.support.index_home import HAIKU, OPUS, SONNET, make_home, prompt, response
from tests.support.light_home import append
from tests.support.page_html import Element, check_policy, parse_html
from tests.support.processes import PATIENCE
from tests.support.rows import of_age
from tests.support.served_page import ServedPage, serve_app
from tests.support.team_page import ALICE, BOB, make_team_home

Run = Callable[..., dict[str, Any]]
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)> &amp; \u202e'


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    # A view waits for rows that were just recorded, however busy the machine is.
    monkeypatch.setattr("hypaware.page.index_updater._WAIT_SECONDS", PATIENCE)
    monkeypatch.setenv("HYP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TZ", "Europe/Berlin")
    return Home(tmp_path / "home")


@pytest.fixture
def page(home: Home) -> Iterator[ServedPage]:
    with serve_app(lambda: make_app(PageContext(home))) as served:
        yield served


@pytest.fixture
def hyp(capfd: pytest.CaptureFixture[str]) -> Run:
    def run(*command: str) -> dict[str, Any]:
        capfd.readouterr()
        assert entry.run((*command, "--json")) == 0
        found: dict[str, Any] = json.loads(capfd.readouterr().out)
        return found

    return run


def usage(output: int) -> dict[str, int]:
    return {"input_tokens": 1000, "output_tokens": output, "cache_read_tokens": 50_000}


def make_sample(home: Home) -> None:
    """Record four sessions of the last 40 days: three projects, two clients, three models, tools that fail."""
    call: dict[str, Any] = {"part_type": "tool_call", "tool_name": "Bash"}
    failed: dict[str, Any] = {
        "part_type": "tool_result",
        "tool_name": "Bash",
        "role": "tool",
        "is_error": True,
        "model": None,
    }
    shop: dict[str, Any] = {"session_id": "shop-1", "cwd": "/home/dev/shop", "model": SONNET}
    codex: dict[str, Any] = {
        "session_id": "codex-1",
        "client_name": "codex",
        "cwd": "/srv/api",
        "model": "gpt-without-a-price",
    }
    old: dict[str, Any] = {"session_id": "old-1", "model": HAIKU}
    make_home(
        home.root,
        prompt(1, "repair the build", at=of_age(2.1)),
        response(2, at=of_age(2), usage=usage(9_000)),
        response(3, at=of_age(2), usage=usage(500), **call),
        response(4, at=of_age(2), **failed),
        response(5, at=of_age(9), usage=usage(700), **shop),
        response(6, at=of_age(1), usage=usage(800), **shop),
        response(7, at=of_age(5), usage=usage(900), **codex),
        response(8, at=of_age(5), **codex, part_type="tool_call", tool_name="Read"),
        response(9, at=of_age(38), usage=usage(100), **old),
    )


def open_overview(page: ServedPage, query: str = "") -> Element:
    answer = page.ask(f"/{query}")
    assert answer.status == 200
    document = parse_html(answer.text)
    check_policy(document)
    return document


def read_figures(document: Element) -> dict[str, str]:
    figures = document.find("dl", "figures").find_all("div")
    return {each.find("dt").text: each.find("dd").text for each in figures}


def read_ranks(document: Element, head: str) -> dict[str, list[str]]:
    """Return the rows of the table whose first column has this head."""
    tables = [each for each in document.find_all("table", "ranks") if each.find("th").text == head]
    return {
        row.find("th").text: [cell.text for cell in row.find_all("td")]
        for table in tables
        for row in table.find("tbody").find_all("tr")
    }


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("", ("--days", "30")),
        ("?days=7", ("--days", "7")),
        ("?days=all", ()),
        ("?days=all&project=/home/dev/shop", ("--project", "/home/dev/shop")),
        ("?days=all&client=codex", ("--client", "codex")),
        ("?model=claude-", ("--days", "30", "--model", "claude-")),
        ("?since=3d", ("--since", "3d")),
        ("?days=30&timezone=Asia/Tokyo", ("--days", "30", "--timezone", "Asia/Tokyo")),
    ],
)
def test_the_numbers_are_those_of_the_commands(
    home: Home, page: ServedPage, hyp: Run, query: str, options: tuple[str, ...]
) -> None:
    make_sample(home)
    expected = hyp("overview", *options)
    totals = expected["totals"]

    document = open_overview(page, query)

    calls, errors = (sum(each[name] for each in expected["tools"]) for name in ("calls", "errors"))
    assert read_figures(document) == {
        "Cost": format_document_cost(totals),
        "Tokens": format_amount(sum_all_tokens(totals)),
        "Sessions": f"{totals['sessions']:,}",
        "Messages": f"{totals['messages']:,}",
        "Tool calls": f"{totals['tool_calls']:,}",
        "Failed calls": format_percent(errors / calls if calls else None),
    }
    for head, list_, column in (("Project", "projects", "cwd"), ("Model", "models", "model")):
        shown = read_ranks(document, head)
        for row in expected[list_]:
            label = Path(row[column]).name if column == "cwd" else row[column].replace("-20250929", "")
            assert shown.pop(label) == [
                format_document_cost(row),
                format_amount(sum_all_tokens(row)),
                f"{row['sessions']:,}",
            ]
        assert shown == {}
    assert read_ranks(document, "Tool") == {
        row["tool"]: [str(row["calls"]), str(row["errors"]), format_percent(row["errors"] / row["calls"])]
        for row in expected["tools"]
    }


@pytest.mark.parametrize("by", ["model", "project", "client"])
@pytest.mark.parametrize("unit", ["cost", "tokens"])
def test_the_chart_adds_up_to_the_usage_by_day(home: Home, page: ServedPage, hyp: Run, by: str, unit: str) -> None:
    make_sample(home)
    days = {row["key"]: row for row in hyp("usage", "--by", "day")["rows"]}

    document = open_overview(page, f"?days=60&by={by}&unit={unit}")

    rows = document.find("section", "course").find("details", "table").find("tbody").find_all("tr")
    shown = {}
    for row in rows:
        address = urlsplit(row.find("a").attributes["href"])
        shown[parse_qs(address.query)["since"][0]] = row.find("td").text
    expected = {
        day: format_document_cost({**row, "unpriced_models": []})
        if unit == "cost"
        else format_amount(sum(count for name, count in row["tokens"].items() if name != "reasoning"))
        for day, row in days.items()
    }
    # A day whose models have no price has no cost.
    expected = {day: text.replace("–", "$0.00") for day, text in expected.items()}
    assert len(shown) == 60
    assert {day: text for day, text in shown.items() if text not in ("$0.00", "0")} == {
        day: text for day, text in expected.items() if text not in ("$0.00", "0")
    }


def test_every_link_to_sessions_lists_as_many_as_it_counts(home: Home, page: ServedPage) -> None:
    make_sample(home)

    document = open_overview(page)

    ranks = [row for table in document.find_all("table", "ranks") for row in table.find("tbody").find_all("tr")]
    counted = 0
    for row in ranks:
        listed = page.ask(row.find("a").attributes["href"])
        assert listed.status == 200
        rows = parse_html(listed.text).find("table", "sessions").find("tbody").find_all("tr")
        if len(row.find_all("td")) == 3 and "%" not in row.text:
            assert len(rows) == int(row.find_all("td")[2].text), row.text
            counted += 1
    assert counted >= 6


def test_all_links_of_the_overview_work(home: Home, page: ServedPage) -> None:
    make_sample(home)
    document = open_overview(page)

    links = {each.attributes["href"] for each in document.find_all("a")}

    assert len(links) > 40
    failed = {link: page.ask(link).status for link in links if not link.startswith(("#", "/static"))}
    assert {link: status for link, status in failed.items() if status != 200} == {}


def test_a_bar_of_an_hour_and_a_cell_lead_to_the_sessions_of_their_time(home: Home, page: ServedPage) -> None:
    make_sample(home)

    document = open_overview(page, "?days=30")

    cells = [each for each in document.find("section", "hours").find_all("a") if "data-tip" in each.attributes]
    assert len(cells) == 5
    for cell in cells:
        listed = parse_html(page.ask(cell.attributes["href"]).text)
        assert len(listed.find("table", "sessions").find("tbody").find_all("tr")) == 1


def test_hostile_names_are_shown_and_have_no_effect(home: Home, page: ServedPage) -> None:
    make_home(
        home.root,
        prompt(1, HOSTILE, at=of_age(1), cwd=f"/home/{HOSTILE}"),
        response(
            2,
            at=of_age(1),
            usage=usage(100),
            cwd=f"/home/{HOSTILE}",
            model=HOSTILE,
            client_name=HOSTILE,
            part_type="tool_call",
            tool_name=HOSTILE,
        ),
    )

    for query in ("", "?by=project", "?by=client&unit=tokens", "?project=x<script>", "?tool=<b>&machine='\"<i>"):
        document = open_overview(page, query.replace(" ", "%20"))
        assert {each.attributes["src"] for each in document.find_all("script")} <= {
            "/static/theme.js",
            "/static/page.js",
            "/static/notice.js",
            "/static/overview.js",
        }
        assert [each.attributes["src"] for each in document.find_all("img")] == ["/static/icon.svg"]
    shown = open_overview(page)
    # Characters that change the direction of text are shown as escapes. A project's name is its last folder.
    expected = escape_cell(HOSTILE)
    assert list(read_ranks(shown, "Tool")) == [expected]
    assert list(read_ranks(shown, "Model")) == [expected]
    assert list(read_ranks(shown, "Project")) == [expected.rpartition("/")[2]]


def test_sessions_that_recorded_something_a_moment_ago_are_running(home: Home, page: ServedPage) -> None:
    make_home(
        home.root,
        prompt(1, "what is running", at=of_age(0.0001), session_id="now"),
        prompt(2, "what was running", at=of_age(0.1), session_id="before"),
    )

    document = open_overview(page)

    running, listed = (each for each in document.find("div", "sessions").find_all("section"))
    assert "Running now" in running.text
    assert [each.find("span").text for each in running.find_all("a", "row")] == ["what is running"]
    assert [each.find("span").text for each in listed.find_all("a", "row")] == ["what is running", "what was running"]


def test_the_figures_are_compared_with_the_period_before(home: Home, page: ServedPage) -> None:
    make_home(
        home.root,
        *(response(number, at=of_age(2), usage=usage(100), session_id=f"new-{number}") for number in range(3)),
        *(response(number, at=of_age(9), usage=usage(100), session_id=f"old-{number}") for number in range(10, 12)),
    )

    document = open_overview(page, "?days=7")

    notes = [each.find("dd", "note").text for each in document.find("dl", "figures").find_all("div")]
    assert [note.startswith("+50 %") for note in notes[:4]] == [True, True, True, True]
    assert "compared with the 7 days before" in document.find("main").text


def test_models_without_a_price_and_the_date_of_the_prices_are_named(home: Home, page: ServedPage, hyp: Run) -> None:
    make_sample(home)

    text = open_overview(page).find("main").text

    assert f"list prices of {hyp('overview')['prices_as_of']}" in text
    assert "There is no price for gpt-without-a-price" in text


def test_an_empty_default_period_shows_everything_with_a_note(home: Home, page: ServedPage) -> None:
    make_home(home.root, response(1, at=of_age(200), usage=usage(100)))

    document = open_overview(page)

    assert read_figures(document)["Sessions"] == "1"
    assert "Nothing was recorded in the last 30 days" in document.find("main").text
    chosen = open_overview(page, "?days=30").find("main")
    assert "Nothing matches" in chosen.text
    assert "/sessions/session-1" in {each.attributes["href"] for each in chosen.find_all("a")}


def test_an_empty_overview_says_why(home: Home, page: ServedPage) -> None:
    make_home(home.root)
    assert "hyp backfill" in open_overview(page).find("main").text

    append(home, [response(1, at=of_age(1), usage=usage(100), model=OPUS)])
    missing = open_overview(page, "?project=shop&days=7")
    assert "No recorded session is in a project shop" in missing.find("main").text
    assert "/?days=7" in {each.attributes["href"] for each in missing.find("main").find_all("a")}
    assert "called the tool Nope" in open_overview(page, "?tool=Nope").find("main").text


def test_without_a_home_the_page_names_the_command(page: ServedPage) -> None:
    answer = page.ask("/")

    assert answer.status == 503
    check_policy(parse_html(answer.text))
    assert "hyp setup" in answer.text


@pytest.mark.parametrize("query", ["days=0", "days=x", "days=99999999", "by=x", "unit=x", "since=x", "timezone=x/y"])
def test_an_invalid_address_is_refused_with_a_reason(home: Home, page: ServedPage, query: str) -> None:
    make_home(home.root)

    answer = page.ask(f"/?{query}")

    assert answer.status == 400
    assert query.partition("=")[0] in parse_html(answer.text).find("main").text or "time zone" in answer.text


def test_a_filter_stays_and_can_be_removed(home: Home, page: ServedPage) -> None:
    make_sample(home)

    bar = open_overview(page, "?project=/home/dev/shop&failed=Bash&by=client").find("section", "filters")

    chips = {each.find("a").attributes["href"] for each in bar.find_all("span", "chip")}
    assert chips == {"/?failed=Bash&by=client", "/?project=%2Fhome%2Fdev%2Fshop&by=client"}
    chosen = [option for option in bar.find_all("option") if "selected" in option.attributes]
    assert [option.text for option in chosen] == ["shop (1)"]
    hidden = {
        each.attributes["name"]: each.attributes["value"]
        for each in bar.find_all("input")
        if each.attributes.get("type") == "hidden"
    }
    assert hidden == {"failed": "Bash", "by": "client"}
    presets = {each.text: each.attributes["href"] for each in bar.find("nav").find_all("a")}
    assert presets["7 days"] == "/?project=%2Fhome%2Fdev%2Fshop&failed=Bash&by=client&days=7"
    assert presets["30 days"] == "/?project=%2Fhome%2Fdev%2Fshop&failed=Bash&by=client"


def test_days_are_those_of_the_time_zone(home: Home, page: ServedPage) -> None:
    day = datetime.now(UTC).replace(hour=23, minute=30) - timedelta(days=3)
    make_home(home.root, response(1, at=day.isoformat(), usage=usage(100)))

    def active_day(zone: str) -> str:
        document = open_overview(page, f"?timezone={zone}")
        return document.find("section", "year").find("tbody").find("a").attributes["href"]

    assert f"since={day.date().isoformat()}" in active_day("UTC")
    assert f"since={(day + timedelta(days=1)).date().isoformat()}" in active_day("Asia/Tokyo")


def test_several_machines_are_compared_by_their_names(home: Home, page: ServedPage) -> None:
    make_team_home(home)
    names = read_machines(home)

    document = open_overview(page, "?days=all&by=machine")

    assert set(read_ranks(document, "Machine")) == {names.name_of(ALICE), names.name_of(BOB)}
    series = document.find("section", "course").find("ul", "legend").find_all("a")
    assert {parse_qs(urlsplit(each.attributes["href"]).query)["machine"][0] for each in series} == {ALICE, BOB}


@pytest.mark.parametrize("query", ["?days=all", "?days=200", "?days=700", "?days=2000"])
@pytest.mark.parametrize("by", ["model", "project"])
def test_bars_of_weeks_and_months_add_up(home: Home, page: ServedPage, query: str, by: str) -> None:
    ages = (0.5, 3, 8, 15, 40, 120, 121, 150)
    make_home(
        home.root,
        *(
            response(number, at=of_age(age), usage={"output_tokens": 1000}, session_id=f"s-{number}")
            for number, age in enumerate(ages)
        ),
    )

    document = open_overview(page, f"{query}&by={by}&unit=tokens")

    rows = document.find("section", "course").find("details", "table").find("tbody").find_all("tr")
    shown = [row for row in rows if row.find("td").text != "0"]
    assert sum(int(row.find("td").text.removesuffix("k")) for row in shown) == len(ages)
    for row in shown:
        listed = parse_html(page.ask(row.find("a").attributes["href"]).text)
        sessions = listed.find("table", "sessions").find("tbody").find_all("tr")
        assert len(sessions) == int(row.find("td").text.removesuffix("k"))


def list_ids(page: ServedPage, address: str) -> set[str]:
    """Return the ids of the sessions that an address lists."""
    answer = page.ask(address)
    assert answer.status == 200, answer.text
    rows = parse_html(answer.text).find("table", "sessions").find("tbody").find_all("tr")
    return {row.find("a").attributes["href"].rpartition("/")[2] for row in rows}


def make_week(home: Home) -> dict[str, set[str]]:
    """Record sessions at hours of the week, in summer and in winter. Return which are at which hour in Berlin."""
    times = {
        "summer": "2026-06-01T08:30:00Z",
        "winter": "2026-11-09T09:15:00Z",
        "earlier": "2026-11-09T08:15:00Z",
        "tuesday": "2026-11-10T09:15:00Z",
        "night": "2026-11-08T23:30:00Z",
    }
    rows = [response(n, at=at, session_id=each, usage=usage(100)) for n, (each, at) in enumerate(times.items(), 1)]
    # A session that was open for long, of another project at the end.
    late: dict[str, Any] = {"at": "2026-11-10T14:20:00Z", "cwd": "/home/dev/shop", "session_id": "winter"}
    make_home(home.root, *rows, response(9, usage=usage(100), **late))
    return {
        "Mon, 10:00": {"summer", "winter"},
        "Mon, 09:00": {"earlier"},
        "Mon, 00:00": {"night"},
        "Tue, 10:00": {"tuesday"},
        "Tue, 15:00": {"winter"},
    }


@pytest.mark.parametrize(
    ("query", "without"),
    [
        ("", set()),
        ("&since=2026-07-01", {"summer"}),
        ("&project=/home/dev/shop", {"summer", "earlier", "tuesday", "night"}),
        ("&hour=9", {"summer", "winter", "tuesday", "night"}),
    ],
)
def test_an_hour_of_the_week_leads_to_its_sessions(home: Home, page: ServedPage, query: str, without: set[str]) -> None:
    at_hour = {hour: ids - without for hour, ids in make_week(home).items() if ids - without}
    if "project" in query:
        # It was active at that hour in another project.
        del at_hour["Mon, 10:00"]

    hours = open_overview(page, f"?since=2026-05-01&until=2026-11-30{query}").find("section", "hours")

    cells = hours.find("svg", "plot").find_all("a")
    shown = {each.attributes["data-tip"].partition("\n")[0]: each.attributes["href"] for each in cells}
    assert {hour: list_ids(page, address) for hour, address in shown.items()} == at_hour
    in_table = {link.attributes["href"] for link in hours.find("tbody").find_all("a")}
    assert in_table == set(shown.values())


@pytest.mark.parametrize("by", ["model", "project"])
def test_the_rest_of_a_legend_leads_to_its_sessions(home: Home, page: ServedPage, by: str) -> None:
    """One row has neither a model nor a project, and is the largest."""
    rows = [
        response(
            number,
            at=of_age(2),
            session_id=f"s{number}",
            model=f"model-{number}" if number else None,
            cwd=f"/home/dev/{number}" if number else None,
            usage=usage(1_000_000 - number * 10_000),
        )
        for number in range(10)
    ]
    make_home(home.root, *rows)

    legend = open_overview(page, f"?unit=tokens&by={by}").find("ul", "legend")

    (rest,) = [entry for entry in legend.find_all("li") if "3 more" in entry.text]
    address = rest.find("a").attributes["href"]
    assert list_ids(page, address) == {"s7", "s8", "s9"}
    chips = parse_html(page.ask(address).text).find("div", "chips").text
    assert f"than {by}" in " ".join(chips.split())


@pytest.mark.parametrize(
    "query", ["weekday=monday", "hour=24", "hour=-1", "hour=%C2%B2", "others=model", "others=x%0Ay"]
)
def test_an_hour_or_a_rest_that_is_not_understood_is_refused(home: Home, page: ServedPage, query: str) -> None:
    make_sample(home)

    assert page.ask(f"/sessions?{query}").status == 400
    assert page.ask(f"/?{query}").status == 400
