"""The queries of docs/recipes.md run through the guard, as for a user."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.query_runner import QueryRunner

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]

PAGE = (Path(__file__).parents[3] / "docs" / "recipes.md").read_text(encoding="utf-8")
RECIPES = re.findall(r"## ([^\n]+)\n\n```sql\n(.*?)```", PAGE, re.DOTALL)
# Recipes that return rows from the small table of these tests.
ANSWERED = {"The longest sessions", "One session, from its beginning"}


def test_every_sql_block_of_the_page_is_a_recipe() -> None:
    assert len(RECIPES) == PAGE.count("```sql") > 5


@pytest.mark.parametrize(("name", "sql"), RECIPES, ids=[name for name, _ in RECIPES])
def test_a_recipe_runs(runner: QueryRunner, name: str, sql: str) -> None:
    rows = runner.rows(sql)
    assert rows or name not in ANSWERED
