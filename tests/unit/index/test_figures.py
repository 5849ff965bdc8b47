"""Usage, overview and lists of sessions against the same figures counted from the rows themselves, for any filter."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hypaware.index.filters import Filters, project_of, to_datetime, to_moment
from hypaware.index.overview import summarize_overview
from hypaware.index.prices import Cost, TokenCounts, read_prices
from hypaware.index.sessions import list_sessions
from hypaware.index.store import Index
from hypaware.index.time_zones import find_zone
from hypaware.index.trends import SERIES, read_activity, read_trends
from hypaware.index.usage import summarize_usage
from tests.support.index_home import HAIKU, OPUS, SONNET, index_of
from tests.support.rows import row

BEGIN = datetime(2026, 10, 24, 20, 0, tzinfo=UTC)
PROJECTS = ("/home/dev/web", "/home/dev/web/api", "/home/dev/shop", "/srv/web", None)
MODELS = (OPUS, SONNET, HAIKU, "model-without-a-price", None)
KINDS = ("text", "tool_call", "tool_result", "error")
PRICES = read_prices()
Row = dict[str, Any]


def make_rows(count: int) -> list[Row]:
    """Return rows of some sessions over four days, while the clock of Berlin changes. Some messages have two parts."""
    pick = random.Random(7)
    made: list[Row] = []
    for number in range(count):
        session = pick.randrange(9)
        kind = pick.choice(KINDS)
        usage = {
            "input_tokens": pick.randrange(150_000),
            "output_tokens": pick.randrange(2000),
            "cache_read_tokens": pick.choice((0, 90_000, 180_000)),
            "cache_write_tokens": 1000,
            "cache_write_1h_tokens": pick.choice((0, 700)),
            "reasoning_tokens": 10,
        }
        shared: Row = {
            "session_id": f"session-{session}",
            "client_name": "codex" if session > 6 else "claude",
            "cwd": PROJECTS[(session + (number % 5 == 0)) % len(PROJECTS)],
            "model": pick.choice(MODELS),
            "message_created_at": (
                BEGIN + timedelta(seconds=pick.randrange(4 * 86_400), microseconds=number)
            ).isoformat(),
            "provider_type": "gateway" if pick.random() < 0.1 else "assistant",
            "is_error": kind in ("tool_result", "error") and pick.random() < 0.4,
            "tool_name": pick.choice(("Bash", "Read")) if kind.startswith("tool") else None,
        }
        if number % 4 == 0:
            made.append(row(number, part_type="text", attributes={"client": {}}, **{**shared, "tool_name": None}))
        made.append(row(number, part_index=1, part_type=kind, attributes={"client": {}, "usage": usage}, **shared))
    return made


def with_one_tool(rows: list[Row]) -> list[Row]:
    """Return the rows, changed so that some sessions do not call every tool."""
    kept = {"session-1": "Bash", "session-3": "Bash", "session-5": "Read"}
    return [
        {**each, "tool_name": each["tool_name"] and kept.get(each["session_id"], each["tool_name"])} for each in rows
    ]


ROWS = with_one_tool(make_rows(400))
CALLS = {
    (each["session_id"], each["tool_name"])
    for each in ROWS
    if each["part_type"] == "tool_call" and each["provider_type"] != "gateway"
}
FAILURES = {
    (each["session_id"], each["tool_name"])
    for each in ROWS
    if each["part_type"] == "tool_result" and each["is_error"] and each["provider_type"] != "gateway"
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    with index_of(tmp_path_factory.mktemp("home"), *ROWS) as opened:
        yield opened


moments = st.one_of(
    st.none(),
    # Any moment; a moment of a row, and one next to it; the edge of a slot.
    st.integers(-3600, 5 * 86_400).map(lambda seconds: to_moment(BEGIN + timedelta(seconds=seconds))),
    st.tuples(st.sampled_from(ROWS), st.sampled_from((-1, 0, 1))).map(
        lambda each: to_moment(datetime.fromisoformat(each[0]["message_created_at"])) + each[1]
    ),
    st.integers(-4, 400).map(lambda quarter: to_moment(BEGIN + timedelta(minutes=15 * quarter))),
)
filters = st.builds(
    lambda window, **more: Filters(
        since=None if window[0] is None else window[0],
        until=window[1] if window[1] is None or window[0] is None else max(window),
        **more,
    ),
    st.tuples(moments, moments).map(lambda pair: sorted(pair) if None not in pair else list(pair)),
    project=st.sampled_from((None, None, "web", "/home/dev/web", "dev/shop", "/srv", "nowhere")),
    client=st.sampled_from((None, None, "claude", "codex", "other")),
    model=st.sampled_from((None, None, "claude-", OPUS, "model-without", "x")),
    tool=st.sampled_from((None, None, None, "Read", "Nothing")),
    failed=st.sampled_from((None, None, None, "Bash", "Nothing")),
    timezone=st.sampled_from(("UTC", "Europe/Berlin", "Asia/Kolkata", "Pacific/Apia")).map(find_zone),
)
slow = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def in_project(cwd: str | None, project: str) -> bool:
    if cwd is None:
        return False
    if project.startswith("/"):
        return cwd == project or cwd.startswith(f"{project}/")
    return cwd == project or cwd.endswith(f"/{project}")


def at(each: Row) -> int:
    return to_moment(datetime.fromisoformat(each["message_created_at"]))


def matches(each: Row, chosen: Filters) -> bool:
    return (
        (chosen.project is None or in_project(each["cwd"], chosen.project))
        and (chosen.client is None or each["client_name"] == chosen.client)
        and (chosen.model is None or (each["model"] or "").startswith(chosen.model))
        and (chosen.tool is None or (each["session_id"], chosen.tool) in CALLS)
        and (chosen.failed is None or (each["session_id"], chosen.failed) in FAILURES)
        and (chosen.since is None or at(each) >= chosen.since)
        and (chosen.until is None or at(each) <= chosen.until)
    )


def counted(each: Row) -> bool:
    return bool(each["provider_type"] != "gateway")


def tokens_of(each: Row) -> TokenCounts:
    usage = each["attributes"].get("usage", {})
    return TokenCounts(*(usage.get(f"{name}_tokens", 0) for name in TokenCounts._fields))


def expected_usage(rows: list[Row]) -> Row:
    tokens, cost = TokenCounts(), Cost()
    for each in rows:
        tokens += tokens_of(each)
        cost.add_response(PRICES, each["model"], tokens_of(each))
    return {
        "sessions": len({each["session_id"] for each in rows}),
        "tokens": tokens.as_document(),
        **cost.as_document(),
    }


def rounded(document: Row) -> Row:
    """Costs are added up in different orders."""
    cost = document["cost_usd"]
    return {**document, "cost_usd": None if cost is None else pytest.approx(cost, abs=1e-5)}


def local(each: Row, chosen: Filters) -> datetime:
    return to_datetime(at(each)).astimezone(chosen.timezone)


KEYS: dict[str, Callable[[Row, Filters], Any]] = {
    "day": lambda each, chosen: local(each, chosen).date().isoformat(),
    "week": lambda each, chosen: local(each, chosen).strftime("%G-W%V"),
    "month": lambda each, chosen: local(each, chosen).strftime("%Y-%m"),
    "project": lambda each, chosen: each["cwd"],
    "model": lambda each, chosen: each["model"],
    "client": lambda each, chosen: each["client_name"],
    "session": lambda each, chosen: each["session_id"],
}


@pytest.mark.parametrize("by", KEYS)
@slow
@given(chosen=filters)
def test_usage_agrees_with_the_rows_for_any_filter(index: Index, by: str, chosen: Filters) -> None:
    rows = [each for each in ROWS if matches(each, chosen)]
    groups: defaultdict[Any, list[Row]] = defaultdict(list)
    for each in rows:
        groups[KEYS[by](each, chosen)].append(each)

    found = summarize_usage(index, chosen, PRICES, by=by)

    column = "cwd" if by == "project" else "key"
    assert {each.pop(column): each for each in found["rows"]} == {
        key: {**({"key": ANY_KEY} if by == "project" else {}), **rounded(expected_usage(group))}
        for key, group in groups.items()
        if by != "model" or any(map(any, map(tokens_of, group)))
    }
    assert found["total"] == rounded(expected_usage(rows))


class _AnyKey:
    def __eq__(self, other: object) -> bool:
        return other is None or isinstance(other, str)

    __hash__ = None  # type: ignore[assignment]


ANY_KEY = _AnyKey()


@pytest.mark.hazard(105)
@slow
@given(chosen=filters)
def test_the_overview_agrees_with_the_rows_for_any_filter(index: Index, chosen: Filters) -> None:
    rows = [each for each in ROWS if matches(each, chosen)]

    found = summarize_overview(index, chosen, PRICES)

    def expected(group: list[Row]) -> Row:
        usage = expected_usage(group)
        return rounded(
            {
                "sessions": usage["sessions"],
                "messages": len({each["message_id"] for each in group if counted(each)}),
                "parts": sum(map(counted, group)),
                "tool_calls": sum(counted(each) and each["part_type"] == "tool_call" for each in group),
                **{f"{name}_tokens": count for name, count in usage["tokens"].items()},
                "cost_usd": usage["cost_usd"],
                "unpriced_models": usage["unpriced_models"],
            }
        )

    assert found["totals"] == expected(rows)
    for list_, column, by in (
        ("days", "day", "day"),
        ("projects", "cwd", "project"),
        ("clients", "client", "client"),
        ("models", "model", "model"),
    ):
        groups: defaultdict[Any, list[Row]] = defaultdict(list)
        for each in rows:
            groups[KEYS[by](each, chosen)].append(each)
        if by == "model":
            groups.pop(None, None)
        assert {each.pop(column): each for each in found[list_]} == {
            key: expected(group) for key, group in groups.items()
        }
    calls, errors = Counter[str](), Counter[str]()
    for each in filter(counted, rows):
        calls[each["tool_name"]] += each["part_type"] == "tool_call"
        errors[each["tool_name"]] += each["part_type"] == "tool_result" and each["is_error"]
    assert {each["tool"]: (each["calls"], each["errors"]) for each in found["tools"]} == {
        tool: (calls[tool], errors[tool]) for tool in calls if tool is not None
    }


@slow
@given(chosen=filters)
def test_a_session_is_listed_if_one_of_its_rows_matches(index: Index, chosen: Filters) -> None:
    found = list_sessions(index, chosen, PRICES)

    assert {each["session_id"] for each in found} == {each["session_id"] for each in ROWS if matches(each, chosen)}


def test_the_figures_of_a_session_are_those_of_all_its_rows(index: Index) -> None:
    for found in list_sessions(index, Filters(), PRICES):
        rows = [each for each in ROWS if each["session_id"] == found["session_id"]]
        usage = rounded(expected_usage(rows))
        assert {name: found[name] for name in ("tokens", "cost_usd", "unpriced_models")} == {
            name: usage[name] for name in ("tokens", "cost_usd", "unpriced_models")
        }
        assert found["messages"] == len({each["message_id"] for each in rows if counted(each)})
        assert found["parts"] == sum(map(counted, rows))
        assert found["tool_calls"] == sum(counted(each) and each["part_type"] == "tool_call" for each in rows)
        assert found["errors"] == sum(counted(each) and each["is_error"] for each in rows)
        assert found["project"] == project_of(found["cwd"])
        assert set(found["models"]) == {each["model"] for each in rows} - {None}
        assert found["started_at"] == min(map(at_text, rows))
        assert found["ended_at"] == max(map(at_text, rows))


def at_text(each: Row) -> str:
    return datetime.fromisoformat(each["message_created_at"]).isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize("by", SERIES)
@slow
@given(chosen=filters)
def test_trends_are_the_figures_of_the_overview_and_add_up(index: Index, by: str, chosen: Filters) -> None:
    overview = summarize_overview(index, chosen, PRICES)

    found = read_trends(index, chosen, PRICES, by=by, step="day")

    assert found.totals == rounded(overview["totals"])
    for key, list_, column in (
        ("project", "projects", "cwd"),
        ("client", "clients", "client"),
        ("model", "models", "model"),
    ):
        expected = {each.pop(column): rounded(each) for each in overview[list_]}
        assert {each["key"]: without_key(each) for each in found.groups[key]} == expected
    assert sum(each["messages"] for each in found.groups["machine"]) == overview["totals"]["messages"]
    days = {each["day"]: each for each in overview["days"]}
    assert {(date(1970, 1, 1) + timedelta(days=day)).isoformat() for day in found.course} == days.keys()
    for day, series in found.course.items():
        expected_day = days[(date(1970, 1, 1) + timedelta(days=day)).isoformat()]
        for name in ("messages", "tool_calls", "input_tokens", "output_tokens"):
            assert sum(each[name] for each in series.values()) == expected_day[name]
        costs = [each["cost_usd"] for each in series.values() if each["cost_usd"] is not None]
        assert sum(costs) == pytest.approx(expected_day["cost_usd"] or 0.0, abs=1e-4)
    hours, weeks = (read_trends(index, chosen, PRICES, by=by, step=step).course for step in ("hour", "week"))
    for course in (hours, weeks):
        counts = [each["messages"] for series in course.values() for each in series.values()]
        assert sum(counts) == found.totals["messages"]
    assert set(weeks) == {(day + 3) // 7 for day in found.course}
    assert {hour // 24 for hour in hours} == set(found.course)
    assert (found.no_match is None) or not found.totals["parts"]


def without_key(document: Row) -> Row:
    return {name: value for name, value in document.items() if name != "key"}


@slow
@given(chosen=filters)
def test_activity_agrees_with_the_rows_for_any_filter(index: Index, chosen: Filters) -> None:
    begin = to_moment(BEGIN + timedelta(days=1))
    end = to_moment(BEGIN + timedelta(days=2, minutes=7))

    found = read_activity(index, chosen, PRICES, (begin, end))

    def count(rows: list[Row], seconds: int) -> dict[int, int]:
        # By the clock of the zone, whatever its offset is.
        messages = {(each["message_id"], local(each, chosen)) for each in rows if counted(each)}
        clocks = (local_time.replace(tzinfo=UTC) for _, local_time in messages)
        return dict(Counter(to_moment(clock) // (seconds * 1_000_000) for clock in clocks))

    assert found.hours == count([each for each in ROWS if matches(each, chosen)], 3600)
    calendar = chosen._replace(since=begin, until=end)
    assert found.days == count([each for each in ROWS if matches(each, calendar)], 86_400)
    assert found.tools == sorted(
        summarize_overview(index, chosen, PRICES)["tools"], key=lambda each: (-each["calls"], each["tool"])
    )


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kathmandu"])
def test_days_that_are_read_as_ranges_have_the_figures_of_days_that_are_sorted(tmp_path: Path, zone: str) -> None:
    pick = random.Random(11)
    rows = []
    for number in range(300):
        session = number // 3
        # Up to six hours, beginning at any time of a day: some sessions are on two days.
        begin = BEGIN + timedelta(days=session % 40, minutes=37 * session)
        at = begin + timedelta(minutes=pick.randrange(360))
        usage = {"input_tokens": pick.randrange(300_000), "output_tokens": number, "cache_write_tokens": 10}
        rows.append(
            row(
                number,
                session_id=f"short-{session}",
                client_name="claude",
                cwd=PROJECTS[session % 3],
                model=MODELS[pick.randrange(len(MODELS))],
                message_created_at=at.isoformat(),
                attributes={"client": {}, "usage": usage},
            )
        )
    with index_of(tmp_path, *rows) as index:
        every, of_client = Filters(timezone=find_zone(zone)), Filters(timezone=find_zone(zone), client="claude")
        assert summarize_overview(index, every, PRICES) == summarize_overview(index, of_client, PRICES)
        for by in ("day", "week", "month", "session", "machine"):
            assert summarize_usage(index, every, PRICES, by=by) == summarize_usage(index, of_client, PRICES, by=by)
        trends = [read_trends(index, each, PRICES, step="week") for each in (every, of_client)]
        assert trends[0] == trends[1]
