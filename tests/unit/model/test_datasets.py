"""Datasets: valid definitions, and the source and key of a row."""

from __future__ import annotations

import dataclasses

import pytest

from hypaware.errors import HypError
from hypaware.model import datasets
from hypaware.model.columns import Column, ColumnType
from hypaware.model.datasets import Dataset, hash_row_key
from tests.support.rows import DATASET, MESSAGES

_COLUMNS = (Column("at", ColumnType.TIMESTAMP, "When."), Column("key", ColumnType.STRING, "Key."))


def _dataset(**changes: object) -> Dataset:
    plain = Dataset("things", "Things.", _COLUMNS, time_column="at", source_columns=("key",), key_column="key")
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


def test_the_built_in_dataset_is_registered() -> None:
    assert datasets.get(DATASET) is MESSAGES
    assert DATASET in datasets.list_names()


def test_an_unknown_dataset_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(
        HypError, match=r"unknown dataset 'ai_gateway_message'\. Did you mean ai_gateway_messages\? Known: "
    ) as error:
        datasets.get("ai_gateway_message")
    assert error.value.kind == "unknown_dataset"


@pytest.mark.hazard(61)
@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "A", "a b", "ä", "a" * 64, "a\n", "_a"])
def test_dataset_names_are_safe_for_folders_and_tables(name: str) -> None:
    with pytest.raises(ValueError, match="invalid or duplicate names"):
        _dataset(name=name)


@pytest.mark.parametrize(
    "changes",
    [
        {"time_column": "key"},
        {"time_column": "absent"},
        {"key_column": "absent"},
        {"source_columns": ("absent",)},
        {"key_parts": ("absent",)},
        {"columns": (*_COLUMNS, Column("key", ColumnType.STRING, "Again."))},
        {"columns": (*_COLUMNS, Column("_hyp", ColumnType.INT, "Not ours to use."))},
    ],
)
def test_an_inconsistent_dataset_is_rejected(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"dataset '?things"):
        _dataset(**changes)


def test_the_source_is_the_first_source_column_that_is_not_empty() -> None:
    assert MESSAGES.source_of({"client_name": "claude", "provider": "anthropic"}) == "claude"
    assert MESSAGES.source_of({"client_name": "", "conversation_source": "codex"}) == "codex"
    assert MESSAGES.source_of({"provider": "openai"}) == "openai"
    assert MESSAGES.source_of({}) == datasets.UNKNOWN_SOURCE


def test_a_row_without_the_key_column_has_the_same_key() -> None:
    assert MESSAGES.key_of({"part_id": "m#1"}) == "m#1"
    assert MESSAGES.key_of({"message_id": "m", "part_index": 1}) == "m#1"
    assert MESSAGES.key_of({"message_id": "m"}) is None
    assert _dataset().key_of({}) is None


def test_a_row_has_one_key_whichever_member_of_a_shared_lake_recorded_it() -> None:
    row = {"part_id": "m1#0", "message_id": "m1", "part_index": 0}

    def key(gateway: str) -> bytes | None:
        return hash_row_key(MESSAGES, {**row, "gateway_id": gateway}, "gw-1")

    assert key("gw-1") == key("gw-1.0123456789ab") == key("gw-1.ba9876543210")
    assert len({key(each) for each in ("gw-1", "gw-10", "gw-10.0123456789ab", "gw-1.laptop")}) == 4
