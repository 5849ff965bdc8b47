"""The filters of an address: each view shows what its command shows with the options of the same names."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

import pytest
from playwright.sync_api import expect

from tests.support.browser import ServedPage, Visit
from tests.support.command import Hyp
from tests.support.made_up_history import COSTLIEST, ERROR, FOLDER, SONNET

WEEK_AGO, DAY_AGO = ((datetime.now(UTC) - timedelta(days=days)).date().isoformat() for days in (7, 1))
FILTERS = [
    {"project": COSTLIEST},
    {"project": f"{FOLDER}/billing"},
    {"client": "codex"},
    {"model": SONNET},
    {"since": WEEK_AGO, "timezone": "UTC"},
    {"until": DAY_AGO, "timezone": "Asia/Tokyo"},
    {"since": WEEK_AGO, "until": DAY_AGO, "project": "billing", "client": "claude", "timezone": "UTC"},
]
OF_THE_LIST = [
    *FILTERS,
    {"errors": "1"},
    {"grep": f'"{ERROR}"'},
    {"errors": "1", "grep": "make test", "sort": "length"},
    {"sort": "cost"},
    {"sort": "tokens"},
    {"project": "nowhere"},
]
OF_SEARCH = [*FILTERS, {"role": "user"}, {"type": "tool_result"}, {"tool": "Bash"}]


def name(filters: dict[str, str]) -> str:
    return "-".join(filters)


def options(filters: dict[str, str]) -> list[str]:
    """Return the options of a command for the filters of an address."""
    return [
        part for key, value in filters.items() for part in ([f"--{key}"] if key == "errors" else [f"--{key}", value])
    ]


@pytest.mark.parametrize("filters", OF_THE_LIST, ids=name)
def test_the_list_shows_the_sessions_of_the_command(history: ServedPage, visit: Visit, filters: dict[str, str]) -> None:
    told = Hyp(history.home.root).run("sessions", "--json", "--limit", "0", *options(filters)).json["sessions"]
    page = visit(history, f"/sessions?{urlencode(filters)}")

    expect(page.locator("#count")).to_have_text(re.compile(rf"^{len(told)}\b"))
    links = page.get_by_role("table", name="Sessions").locator("a[href^='/sessions/']")
    shown = [link.get_attribute("href") for link in links.all()[:10]]
    assert [re.split("[/?]", href or "")[2] for href in shown] == [each["session_id"] for each in told[:10]]


@pytest.mark.parametrize("filters", OF_SEARCH, ids=name)
def test_search_finds_what_the_command_finds(history: ServedPage, visit: Visit, filters: dict[str, str]) -> None:
    told = Hyp(history.home.root).run("search", "test", "--json", *options(filters)).json
    page = visit(history, f"/search?{urlencode({'q': 'test', **filters})}")

    expect(page.locator("main").get_by_role("status")).to_contain_text(
        f"{told['total']:,} match" if told["total"] else "Nothing matches"
    )


@pytest.mark.parametrize("filters", FILTERS, ids=name)
def test_the_overview_counts_what_the_command_counts(
    history: ServedPage, visit: Visit, filters: dict[str, str]
) -> None:
    told = Hyp(history.home.root).run("overview", "--json", *options(filters)).json["totals"]
    days = {} if "since" in filters or "until" in filters else {"days": "all"}
    page = visit(history, f"/?{urlencode({**filters, **days})}")

    figures = page.locator(".figures")
    expect(figures).to_contain_text(re.compile(rf"Sessions\s*{told['sessions']}\b"))
    expect(figures).to_contain_text(re.compile(rf"Messages\s*{told['messages']:,}\b"))


def test_filters_stay_in_the_address_from_view_to_view(history: ServedPage, visit: Visit) -> None:
    page = visit(history, "/sessions?client=claude")
    page.get_by_role("combobox", name="Project").select_option(f"{FOLDER}/{COSTLIEST}")
    expect(page).to_have_url(re.compile("client=claude.*project=|project=.*client=claude"))
    for view in ("Overview", "Search", "Sessions"):
        page.get_by_role("navigation", name="Views").get_by_role("link", name=view).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(view)
        expect(page).to_have_url(re.compile("client=claude"))
        expect(page).to_have_url(re.compile("project="))
    page.get_by_role("link", name="Remove the filter project").click()
    expect(page).not_to_have_url(re.compile("project="))
    expect(page).to_have_url(re.compile("client=claude"))


@pytest.mark.parametrize(
    "query", ["since=yesterdayish", "timezone=Nowhere/Land", "sort=beauty", "until=%00", "days=-1"]
)
@pytest.mark.parametrize("path", ["/", "/sessions", "/search"])
def test_a_value_that_no_filter_has_is_explained(history: ServedPage, visit: Visit, path: str, query: str) -> None:
    page = visit(history, f"{path}?{query}", expected=("status of 400",))
    expect(page.get_by_role("heading", level=1)).to_be_visible()
