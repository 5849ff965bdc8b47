"""The overview and the usage of real transcripts, compared with SQL over the lake that Spark has written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from hypaware.engine.session import EngineSession
from hypaware.home import Home
from hypaware.index.filters import make_filters
from hypaware.index.overview import summarize_overview
from hypaware.index.prices import read_prices
from hypaware.index.sessions import list_sessions
from hypaware.index.store import Index, open_index
from hypaware.index.usage import summarize_usage
from hypaware.lake import schema
from hypaware.query import views
from hypaware.state import flushes
from hypaware.state.home_opener import open_home
from tests.support import claude_transcripts, codex_rollouts
from tests.support.history import rows_of
from tests.support.light_home import append
from tests.support.query_runner import QueryRunner
from tests.support.rows import DATASET

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]
TOKENS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")
ZONE = "Asia/Tokyo"
# Another zone than that of the table, whose days are in UTC.
DAY = f"date_format(from_utc_timestamp(message_created_at, '{ZONE}'), 'yyyy-MM-dd')"
FIGURES = f"""
    count(DISTINCT session_id) AS sessions,
    count(DISTINCT CASE WHEN provider_type IS DISTINCT FROM 'gateway' THEN message_id END) AS messages,
    count_if(provider_type IS DISTINCT FROM 'gateway') AS parts,
    count_if(provider_type IS DISTINCT FROM 'gateway' AND part_type = 'tool_call') AS tool_calls,
    {", ".join(f"coalesce(sum(get_json_object(attributes, '$.usage.{name}')::bigint), 0) AS {name}" for name in TOKENS)}
"""


def sample_rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of the sample transcripts of Claude Code and Codex, each row once."""
    codex = [folder / name for name in codex_rollouts.sample_names()]
    for path in codex:
        path.write_bytes(codex_rollouts.sample(path.name))
    sources = [(claude_transcripts.PROVIDER, path) for path in claude_transcripts.unpacked(folder / "claude")]
    found: dict[str, dict[str, Any]] = {}
    for provider, path in [*sources, *((codex_rollouts.PROVIDER, path) for path in codex)]:
        for row in rows_of(provider, path, quiet=True)[0]:
            found.setdefault(row["part_id"], {name: value for name, value in row.items() if name != "gateway_id"})
    return list(found.values())


@pytest.fixture(scope="module")
def lake(
    engine_session: EngineSession, engine_home: Home, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[QueryRunner]:
    """Return a runner of queries over the samples, which are committed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(views, "_views_by_session", WeakKeyDictionary())
        drop = f"DROP TABLE IF EXISTS {schema.full_table_name(DATASET)} PURGE"
        engine_session.spark.sql(drop)
        with closing(open_home(engine_home).store) as store, store.transaction() as connection:
            flushes.lower_high_water(connection, DATASET, 0)
        append(engine_home, sample_rows(tmp_path_factory.mktemp("samples")))
        runner = QueryRunner(engine_session.spark)
        runner.home = engine_home
        runner.run("SELECT 1 FROM ai_gateway_messages LIMIT 1", format="json", refresh="always")
        yield runner
        engine_session.spark.sql(drop)


@pytest.fixture
def index(lake: QueryRunner) -> Iterator[Index]:
    with open_index(lake.home) as opened:
        yield opened


def without_cost(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in ("cost_usd", "unpriced_models")} for row in rows]


def by_key(rows: list[dict[str, Any]], key: str) -> dict[Any, dict[str, Any]]:
    return {row[key]: row for row in rows}


def test_the_overview_agrees_with_sql(lake: QueryRunner, index: Index) -> None:
    found = summarize_overview(index, make_filters(timezone=ZONE), read_prices())

    assert without_cost([found["totals"]]) == lake.rows(f"SELECT {FIGURES} FROM ai_gateway_messages")
    assert found["totals"]["parts"] > 250
    assert found["totals"]["tool_calls"] > 30
    for list_, key, column in (
        ("days", "day", DAY),
        ("projects", "cwd", "cwd"),
        ("clients", "client", "client_name"),
        ("models", "model", "model"),
    ):
        asked = lake.rows(f"SELECT {column} AS {key}, {FIGURES} FROM ai_gateway_messages GROUP BY 1")
        expected = [row for row in asked if list_ != "models" or row[key] is not None]
        assert by_key(without_cost(found[list_]), key) == by_key(expected, key)
    tools = lake.rows(
        """SELECT tool_name AS tool, count_if(part_type = 'tool_call') AS calls,
                  count_if(part_type = 'tool_result' AND is_error) AS errors
           FROM ai_gateway_messages
           WHERE tool_name IS NOT NULL AND provider_type IS DISTINCT FROM 'gateway' GROUP BY 1"""
    )
    assert by_key(found["tools"], "tool") == by_key(tools, "tool")


def test_a_window_that_cuts_slots_and_sessions_agrees_with_sql(lake: QueryRunner, index: Index) -> None:
    times = [
        datetime.fromisoformat(row["at"]).astimezone(UTC)
        for row in lake.rows("SELECT DISTINCT message_created_at AS at FROM ai_gateway_messages ORDER BY 1")
    ]
    since, until = times[len(times) // 5], times[4 * len(times) // 5]
    window = (
        f"message_created_at >= TIMESTAMP '{since:%Y-%m-%d %H:%M:%S.%f}' "
        f"AND message_created_at <= TIMESTAMP '{until:%Y-%m-%d %H:%M:%S.%f}'"
    )
    filters = make_filters(since=since, until=until, client="claude", timezone="UTC")

    found = summarize_overview(index, filters, read_prices())

    where = f"WHERE client_name = 'claude' AND {window}"
    assert without_cost([found["totals"]]) == lake.rows(f"SELECT {FIGURES} FROM ai_gateway_messages {where}")
    assert 0 < found["totals"]["parts"] < summarize_overview(index, make_filters(), read_prices())["totals"]["parts"]


def test_sessions_and_their_usage_agree_with_sql(lake: QueryRunner, index: Index) -> None:
    asked = by_key(lake.rows(f"SELECT session_id, {FIGURES} FROM ai_gateway_messages GROUP BY 1"), "session_id")

    sessions = list_sessions(index, make_filters(), read_prices())
    usage = summarize_usage(index, make_filters(), read_prices(), by="session")

    assert {each["session_id"] for each in sessions} == asked.keys() == {row["key"] for row in usage["rows"]}
    for each in sessions:
        expected = asked[each["session_id"]]
        assert [each[name] for name in ("messages", "parts", "tool_calls")] == [
            expected[name] for name in ("messages", "parts", "tool_calls")
        ]
        assert {f"{name}_tokens": count for name, count in each["tokens"].items()} == {
            name: expected[name] for name in TOKENS
        }
    for row in usage["rows"]:
        assert {f"{name}_tokens": count for name, count in row["tokens"].items()} == {
            name: asked[row["key"]][name] for name in TOKENS
        }
