"""Addresses: filters survive links in both directions, and invalid ones are refused."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.errors import UsageError
from hypaware.index.filters import to_datetime
from hypaware.page.address import FILTERS, Linker, read_days, read_filters
from hypaware.page.filter_bar import make_filter_bar

NOW = datetime(2026, 11, 15, 9, 30, tzinfo=UTC)
NAMES = ("project", "client", "model", "machine", "tool", "failed")
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
queries = st.dictionaries(st.sampled_from(NAMES), texts)
others = st.dictionaries(st.sampled_from(("by", "unit", "sort", "q", "grep")), texts)


def parse(address: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(address).query, keep_blank_values=True))


@given(queries, others)
def test_a_link_keeps_filters_and_what_belongs_to_its_view(filters: dict[str, str], more: dict[str, str]) -> None:
    query = {**filters, **more}

    link = Linker("/", query)

    assert parse(link()) == query
    assert parse(link("/sessions")) == filters
    assert urlsplit(link("/sessions")).path == "/sessions"
    assert parse(link(by="client")) == {**query, "by": "client"}
    assert parse(link(**dict.fromkeys(FILTERS))) == more


@given(queries.filter(lambda query: not query.get("project", "x").startswith(("/", "~", "."))))
def test_filters_are_read_as_they_are_written(query: dict[str, str]) -> None:
    found = read_filters(parse(Linker("/", query)()), now=NOW)

    assert {name: getattr(found, name) for name in NAMES if getattr(found, name) is not None} == query


@given(st.sampled_from(("7", "30", "all")), queries)
def test_days_replace_dates_and_dates_replace_days(days: str, query: dict[str, str]) -> None:
    dated = {**query, "since": "2026-11-01", "until": "2026-11-02"}

    assert parse(Linker("/", dated)(days=days)) == {**query, "days": days}
    assert parse(Linker("/", {**query, "days": days})(since="2026-11-01")) == {**query, "since": "2026-11-01"}
    # A form without scripts sends both.
    assert parse(Linker("/", {**dated, "days": days})("/sessions")) == dated


def test_the_last_days_begin_at_midnight_of_the_time_zone() -> None:
    found = read_filters({"days": "7", "timezone": "America/New_York"}, now=NOW)

    assert found.since is not None
    assert to_datetime(found.since).isoformat() == "2026-11-09T05:00:00+00:00"
    assert found.until is None


def test_dates_count_more_than_days() -> None:
    query = {"days": "7", "since": "2026-01-01", "timezone": "UTC"}

    found = read_filters(query, default_days=30, now=NOW)

    assert found.since is not None
    assert to_datetime(found.since).year == 2026
    assert to_datetime(found.since).month == 1
    assert read_days(query, 30) is None


@pytest.mark.parametrize("days", ["0", "-1", "1.5", "٧", "x", "99999999999999999999", "36501"])
def test_a_wrong_number_of_days_is_refused(days: str) -> None:
    with pytest.raises(UsageError, match="not a number of days"):
        read_filters({"days": days})


def test_a_folder_of_an_unknown_user_is_refused() -> None:
    with pytest.raises(UsageError, match="not a folder"):
        read_filters({"project": "~nobody-of-this-name/web"})


@given(queries)
def test_each_chip_of_the_filter_bar_removes_one_filter(query: dict[str, str]) -> None:
    choices: dict[str, list[object]] = {name: [] for name in ("project", "client", "model", "machine")}

    bar = make_filter_bar("/sessions", query, choices, read_filters({}))  # type: ignore[arg-type]

    assert {chip.name: parse(chip.without) for chip in bar.chips} == {
        name: {other: value for other, value in query.items() if other != name} for name in query
    }
    assert bar.clear == "/sessions"
    assert [menu.chosen for menu in bar.menus if menu.chosen] == [
        query[name] for name in ("project", "client", "model", "machine") if name in query
    ]
