"""The job `overview` on rows from spool and flush: every number is compared with the input rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from hypaware.engine.session import EngineSession
from hypaware.home import Home
from hypaware.lake import schema
from hypaware.query import views
from hypaware.query.overview import run_overview
from hypaware.query.run import run_query
from hypaware.state import flushes
from hypaware.state.home_opener import open_home
from tests.support.light_home import append
from tests.support.query_runner import QueryRunner
from tests.support.rows import DATASET, row

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]

USAGE = {
    "input_tokens": 3,
    "output_tokens": 50,
    "cache_read_tokens": 11_000,
    "cache_write_tokens": 512,
    "reasoning_tokens": 20,
}


class Overview(QueryRunner):
    """Return the home of the shared engine, with an empty table."""

    def of(self, *rows: dict[str, Any], since: str | None = None, refresh: str = "always") -> dict[str, Any]:
        if rows:
            append(self.home, list(rows))
        return run_overview(self, {"since": since, "refresh": refresh})


@pytest.fixture
def overview(engine_session: EngineSession, engine_home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[Overview]:
    monkeypatch.setattr(views, "_views_by_session", WeakKeyDictionary())
    drop = f"DROP TABLE IF EXISTS {schema.full_table_name(DATASET)} PURGE"
    engine_session.spark.sql(drop)
    with closing(open_home(engine_home).store) as store, store.transaction() as connection:
        flushes.lower_high_water(connection, DATASET, 0)
    runner = Overview(engine_session.spark)
    runner.home = engine_home
    engine_session.spark.sparkContext.setJobGroup("overview", "overview")
    yield runner
    engine_session.spark.sql(drop)


def message(number: int, parts: int = 1, first: int = 0, **columns: Any) -> list[dict[str, Any]]:
    """Return the parts of one message; the last one carries the token counts."""
    usage = columns.pop("usage", None)
    made = [row(number, part_index=first + at, attributes={"client": {}}, **columns) for at in range(parts)]
    made[-1]["attributes"] = {"client": {}, **({"usage": usage} if usage else {})}
    return made


@pytest.mark.hazard(105)
def test_rows_that_are_not_part_of_the_conversation_are_left_out_but_their_tokens_count(overview: Overview) -> None:
    gateway: dict[str, Any] = {"provider_type": "gateway", "cwd": "/home/dev/a"}
    found = overview.of(
        *message(1, cwd="/home/dev/a", role="user", provider_type="user"),
        *message(2, cwd="/home/dev/a", usage={"output_tokens": 5}),
        *message(3, role="user", provider_subtype="context", **gateway),
        *message(4, part_type="error", provider_subtype="failed_call", is_error=True, **gateway),
        *message(5, part_type="usage", provider_subtype="compaction", usage={"output_tokens": 40}, **gateway),
    )

    totals = found["totals"]
    assert (totals["sessions"], totals["messages"], totals["parts"], totals["output_tokens"]) == (1, 2, 2, 45)
    assert [(each["messages"], each["output_tokens"]) for each in found["projects"]] == [(2, 45)]


def test_sessions_messages_and_tokens_are_counted_in_total_and_by_day_project_and_model(overview: Overview) -> None:
    found = overview.of(
        *message(1, cwd="/home/dev/a", role="user", model=None),
        *message(2, parts=3, cwd="/home/dev/a", usage=USAGE),
        *message(3, cwd="/home/dev/b", session_id="session-2", model="model-2", usage=USAGE),
        *message(4, session_id="session-2", message_created_at="2026-11-16T00:00:00Z", usage={"output_tokens": 7}),
    )

    assert found["totals"] == {
        "sessions": 2,
        "messages": 4,
        "parts": 6,
        "tool_calls": 0,
        "input_tokens": 6,
        "output_tokens": 107,
        "cache_read_tokens": 22_000,
        "cache_write_tokens": 1024,
        "reasoning_tokens": 40,
    }
    assert (found["first_day"], found["last_day"]) == ("2026-11-15", "2026-11-16")
    days = {each["day"]: (each["sessions"], each["messages"], each["output_tokens"]) for each in found["days"]}
    assert days == {"2026-11-15": (2, 3, 100), "2026-11-16": (1, 1, 7)}
    projects = [(each["cwd"], each["sessions"], each["messages"], each["parts"]) for each in found["projects"]]
    assert projects == [("/home/dev/a", 1, 2, 4), ("/home/dev/b", 1, 1, 1), (None, 1, 1, 1)]
    models = {each["model"]: (each["messages"], each["reasoning_tokens"]) for each in found["models"]}
    assert models == {"model-1": (2, 20), "model-2": (1, 20)}
    assert [each["client"] for each in found["clients"]] == ["claude"]


def test_a_message_without_a_first_part_is_counted(overview: Overview) -> None:
    found = overview.of(*message(1), *message(2, parts=2, first=1), *message(3, parts=2))

    assert (found["totals"]["messages"], found["totals"]["parts"]) == (3, 5)


def test_messages_with_one_part_each_are_counted_without_reading_their_ids(overview: Overview) -> None:
    assert overview.of(*message(1), *message(2))["totals"]["messages"] == 2


def test_tools_are_counted_by_calls_and_failed_results(overview: Overview) -> None:
    def call(number: int, tool: str) -> dict[str, Any]:
        return row(number, part_type="tool_call", tool_name=tool)

    def result(number: int, tool: str, **columns: Any) -> dict[str, Any]:
        return row(number, part_type="tool_result", tool_name=tool, role="user", **columns)

    found = overview.of(call(1, "Read"), call(2, "Bash"), call(3, "Bash"), result(4, "Bash", is_error=True), row(5))

    assert found["tools"] == [{"tool": "Bash", "calls": 2, "errors": 1}, {"tool": "Read", "calls": 1, "errors": 0}]
    assert found["totals"]["tool_calls"] == 3


def test_only_whole_numbers_in_the_top_level_usage_are_counted(
    overview: Overview,
) -> None:
    found = overview.of(
        row(1, attributes={"claude": {"tool_use_result": {"usage": {"output_tokens": 1000}}}}),
        row(2, attributes={"usage": {"output_tokens": "many", "input_tokens": 3}}),
        row(3, attributes={"usage": ["output_tokens"]}),
        row(4, attributes={"usage": {"output_tokens": 5}, "claude": {"usage": {"output_tokens": 1000}}}),
        row(5, attributes=None),
    )

    assert (found["totals"]["output_tokens"], found["totals"]["input_tokens"]) == (5, 3)
    assert found["totals"]["messages"] == 5


def test_an_overflow_of_counts_does_not_break_the_overview(overview: Overview) -> None:
    found = overview.of(*(row(number, attributes={"usage": {"output_tokens": 2**63 - 1}}) for number in range(3)))

    assert found["totals"]["messages"] == 3


def test_a_window_includes_its_first_day(overview: Overview) -> None:
    rows = [row(day, message_created_at=f"2026-11-{day:02}T00:00:00Z") for day in (13, 14, 15)]

    found = overview.of(*rows, since="2026-11-14")

    assert [each["day"] for each in found["days"]] == ["2026-11-14", "2026-11-15"]
    assert found["since"] == "2026-11-14"
    assert overview.of(since="2026-11-16")["totals"]["parts"] == 0


def test_a_lake_without_a_table_has_an_empty_overview(overview: Overview) -> None:
    found = overview.of(refresh="never")

    assert found["totals"]["sessions"] == 0
    assert found["first_day"] is None


def test_an_overview_agrees_with_sql(overview: Overview) -> None:
    rows = [row(number, session_id=f"session-{number % 7}", cwd=f"/home/dev/{number % 3}") for number in range(200)]
    found = overview.of(*rows)

    run_query(
        overview,
        {
            "sql": "SELECT cwd, count(DISTINCT session_id) AS sessions, count(DISTINCT message_id) AS messages, "
            "sum(get_json_object(attributes, '$.usage.output_tokens')::bigint) AS output_tokens "
            "FROM ai_gateway_messages GROUP BY cwd ORDER BY messages DESC, cwd",
            "format": "json",
            "refresh": "never",
        },
    )
    asked = json.loads(overview.output)
    assert [{name: each[name] for name in asked[0]} for each in found["projects"]] == asked
