"""Datasets: what they may look like, and how a row's source and key are found."""

from __future__ import annotations

import dataclasses

import pytest

from hypaware.errors import HypError
from hypaware.model import datasets
from hypaware.model.columns import Column, Type
from hypaware.model.datasets import Dataset
from tests.rows import DATASET, MESSAGES

_COLUMNS = (Column("at", Type.TIMESTAMP, "When."), Column("key", Type.STRING, "Key."))


def _dataset(**changes: object) -> Dataset:
    plain = Dataset("things", "Things.", _COLUMNS, time_column="at", source_columns=("key",), key_column="key")
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


def test_the_built_in_dataset_is_registered() -> None:
    assert datasets.get(DATASET) is MESSAGES
    assert DATASET in datasets.names()


def test_an_unknown_dataset_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(
        HypError, match=r"no dataset 'ai_gateway_message' \(did you mean ai_gateway_messages\?\); there are: "
    ) as error:
        datasets.get("ai_gateway_message")
    assert error.value.kind == "unknown_dataset"


@pytest.mark.hazard(61)
@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "A", "a b", "ä", "a" * 64, "a\n", "_a"])
def test_a_datasets_name_is_safe_as_a_folder_and_a_table(name: str) -> None:
    with pytest.raises(ValueError, match="bad or repeated names"):
        _dataset(name=name)


@pytest.mark.parametrize(
    "changes",
    [
        {"time_column": "key"},
        {"time_column": "absent"},
        {"key_column": "absent"},
        {"source_columns": ("absent",)},
        {"key_parts": ("absent",)},
        {"columns": (*_COLUMNS, Column("key", Type.STRING, "Again."))},
        {"columns": (*_COLUMNS, Column("_hyp", Type.INT, "Not ours to use."))},
    ],
)
def test_a_dataset_that_contradicts_itself_cannot_be_made(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"dataset '?things"):
        _dataset(**changes)


def test_the_source_is_the_first_of_its_columns_that_is_not_empty() -> None:
    assert MESSAGES.source_of({"client_name": "claude", "provider": "anthropic"}) == "claude"
    assert MESSAGES.source_of({"client_name": "", "conversation_source": "codex"}) == "codex"
    assert MESSAGES.source_of({"provider": "openai"}) == "openai"
    assert MESSAGES.source_of({}) == datasets.UNKNOWN_SOURCE


def test_a_row_from_before_the_key_column_has_the_same_key() -> None:
    assert MESSAGES.key_of({"part_id": "m#1"}) == "m#1"
    assert MESSAGES.key_of({"message_id": "m", "part_index": 1}) == "m#1"
    assert MESSAGES.key_of({"message_id": "m"}) is None
    assert _dataset().key_of({}) is None
