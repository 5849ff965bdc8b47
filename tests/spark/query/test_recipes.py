"""The queries of docs/recipes.md run through the guard, as for a user."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypaware.engine.session import EngineSession
from hypaware.lake import schema
from tests.support.query_runner import QueryRunner
from tests.support.rows import MESSAGES

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]

PAGE = (Path(__file__).parents[3] / "docs" / "recipes.md").read_text(encoding="utf-8")
QUERIES, OTHER_READERS = PAGE.split("## Other readers")
RECIPES = re.findall(r"## ([^\n]+)\n\n(?:[A-Z][^`#]+\n\n)?```sql\n(.*?)```", QUERIES, re.DOTALL)
# Recipes that return rows from the small table of these tests.
ANSWERED = {
    *("How many tokens did I use?", "What did it cost?"),
    *("Which sessions were the longest?", "What was said in one session?"),
}


@pytest.fixture(autouse=True, scope="module")
def responses(engine: EngineSession) -> Iterator[None]:
    """Two responses with a thousand tokens of each kind."""
    table = schema.full_table_name(MESSAGES.name)
    engine.spark.sql(f"""
        INSERT INTO {table}
            (_hyp_ingest_seq, _hyp_source, gateway_id, schema_version, session_id, provider, model,
             conversation_started_at, message_id, message_index, message_created_at, role, part_id, part_index,
             part_type, attributes, date)
        SELECT 1000 + id, 'claude', 'gw-1', 7, 'session-0', 'anthropic', IF(id = 0, 'claude-opus-5', 'model-1'),
               timestamp'2026-11-15 07:00:00', concat('used-', id), 0, timestamp'2026-11-15 07:00:00', 'assistant',
               concat('used-', id, '#0'), 0, 'text', '{{"usage":{{"cache_read_tokens":1000,"cache_write_tokens":1000,
               "input_tokens":1000,"output_tokens":1000}}}}', '2026-11-15'
        FROM range(2)
    """)
    yield
    engine.spark.sql(f"DELETE FROM {table} WHERE _hyp_ingest_seq >= 1000")


def test_every_sql_block_of_the_page_is_a_recipe() -> None:
    assert len(RECIPES) == QUERIES.count("```sql") > 5
    assert {name for name, _ in RECIPES} >= ANSWERED


@pytest.mark.parametrize(("name", "sql"), RECIPES, ids=[name for name, _ in RECIPES])
def test_a_recipe_runs(runner: QueryRunner, name: str, sql: str) -> None:
    rows = runner.rows(sql)
    assert rows or name not in ANSWERED


def test_the_cost_of_a_model_is_its_tokens_times_their_prices(runner: QueryRunner) -> None:
    (sql,) = [sql for name, sql in RECIPES if name == "What did it cost?"]
    costs = {row["model"]: row["dollars"] for row in runner.rows(sql)}
    # A thousand tokens of each kind, but for a model without a price.
    assert costs == {"claude-opus-5": 0.04, "model-1": None}
