"""`hyp query schema` and the text of the views, without Spark."""

from __future__ import annotations

import pytest

from hypaware.cli.query import describe_datasets
from hypaware.errors import HypError
from hypaware.model import datasets
from hypaware.query.views import view_sql

MESSAGES = datasets.get("ai_gateway_messages")
COLUMNS = frozenset(column.name for column in MESSAGES.columns)


def test_every_public_column_is_described_in_order_and_no_internal_one() -> None:
    (found,) = describe_datasets("ai_gateway_messages")["datasets"]

    assert [column["name"] for column in found["columns"]] == [column.name for column in MESSAGES.columns]
    assert len(found["columns"]) == 56
    assert not any(column["name"].startswith("_") for column in found["columns"])
    assert found["columns"][0] == {
        "name": "gateway_id",
        "type": "STRING",
        "nullable": False,
        "about": "Id of the installation that recorded the row.",
    }


@pytest.mark.parametrize("name", ["hypaware.ai_gateway_messages", "HypAware.AI_Gateway_Messages"])
def test_a_dataset_is_found_by_every_name_that_a_query_accepts(name: str) -> None:
    assert describe_datasets(name) == describe_datasets("ai_gateway_messages")


def test_without_a_name_all_datasets_are_described() -> None:
    assert [each["name"] for each in describe_datasets()["datasets"]] == list(datasets.list_names())


def test_describing_an_unknown_dataset_suggests_the_nearest_name() -> None:
    with pytest.raises(HypError, match="Did you mean ai_gateway_messages"):
        describe_datasets("ai_gateway_message")


def test_a_view_has_the_declared_columns_in_order() -> None:
    written = view_sql(MESSAGES, COLUMNS | {"_hyp_source", "_hyp_ingest_seq"})

    assert written.startswith("SELECT `gateway_id`, `schema_version`, `session_id`, ")
    assert written.endswith(", `date` FROM hyp.hypaware.ai_gateway_messages")
    assert "_hyp" not in written


def test_a_column_that_the_table_lacks_is_a_typed_null() -> None:
    written = view_sql(MESSAGES, COLUMNS - {"tools", "message_index"})

    assert "CAST(NULL AS STRING) AS `tools`" in written
    assert "CAST(NULL AS INT) AS `message_index`" in written


def test_a_dataset_without_a_table_is_an_empty_relation() -> None:
    written = view_sql(MESSAGES, frozenset())

    assert "FROM" not in written
    assert written.endswith(" WHERE false")
