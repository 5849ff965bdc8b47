"""Rollouts of real clients, compared with the original column by column and with a naive oracle."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from hypaware.model.datasets import Row
from hypaware.model.schemas import AI_GATEWAY_MESSAGES
from tests.support import codex_oracle
from tests.support.codex_rollouts import PROVIDER, SAMPLES, sample, sample_names
from tests.support.history import comparable, rows_of, usage

NAMES = sample_names()
# All columns except the installation's id.
COLUMNS = [column.name for column in AI_GATEWAY_MESSAGES.columns if column.name != "gateway_id"]

# Rows that the original lacks, with the reason; a test checks that each entry is still needed.
DECISIONS: dict[str, Callable[[Row], bool]] = {
    "words that are said again without an id are another message": lambda row: (
        row["content_text"] == "Done." and row["attributes"]["codex"]["identity_source"] == "gateway_fallback"
    ),
}


def imported(name: str, folder: Path) -> list[Row]:
    (folder / name).write_bytes(sample(name))
    rows, reading = rows_of(PROVIDER, folder / name)
    assert not reading.held
    return rows


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    folder = tmp_path_factory.mktemp("samples")
    return {row["part_id"]: row for name in NAMES for row in imported(name, folder)}


@pytest.fixture(scope="module")
def original() -> dict[str, Row]:
    text = lzma.decompress((SAMPLES / "original-rows.jsonl.xz").read_bytes())
    return {row["part_id"]: row for row in map(json.loads, text.splitlines())}


def test_there_are_samples_of_both_versions_and_of_every_scenario() -> None:
    assert len(NAMES) == 11


@pytest.mark.parametrize("column", COLUMNS)
def test_columns_equal_those_of_the_original(column: str, rows: dict[str, Row], original: dict[str, Row]) -> None:
    both = rows.keys() & original.keys()

    assert len(both) == len(original)
    assert {key: comparable(rows[key], column) for key in both} == {
        key: comparable(original[key], column) for key in both
    }


def test_every_row_of_the_original_is_there(rows: dict[str, Row], original: dict[str, Row]) -> None:
    assert original.keys() - rows.keys() == set()


@pytest.mark.parametrize("decision", DECISIONS)
def test_every_recorded_difference_still_exists(decision: str, rows: dict[str, Row], original: dict[str, Row]) -> None:
    assert any(DECISIONS[decision](rows[key]) for key in rows.keys() - original.keys())


def test_every_additional_row_is_a_recorded_difference(rows: dict[str, Row], original: dict[str, Row]) -> None:
    new = [rows[key] for key in rows.keys() - original.keys()]
    assert [row for row in new if not any(allows(row) for allows in DECISIONS.values())] == []


@pytest.mark.hazard(51)
@pytest.mark.parametrize("name", NAMES)
def test_token_totals_equal_those_of_the_client(name: str, tmp_path: Path) -> None:
    assert usage(imported(name, tmp_path)) == Counter(codex_oracle.tokens(sample(name)))


@pytest.mark.parametrize("name", NAMES)
def test_every_part_that_a_naive_reader_finds_makes_a_row(name: str, tmp_path: Path) -> None:
    found = Counter((row["role"], row["part_type"]) for row in imported(name, tmp_path))
    assert found == codex_oracle.parts(sample(name))


def test_the_samples_contain_tokens(rows: dict[str, Row]) -> None:
    # 23 responses of version 0.166.0 and 6 of 0.77.0, each with the same counts.
    assert usage(rows.values()) == Counter(
        {
            "input_tokens": 29 * 1000,
            "cache_read_tokens": 29 * 8000,
            "output_tokens": 29 * 60,
            "reasoning_tokens": 29 * 20,
            "total_tokens": 29 * 9060,
        }
    )


def test_nothing_encrypted_is_stored(rows: dict[str, Row]) -> None:
    assert any(b"fakeEncrypted" in sample(name) for name in NAMES)
    assert "fakeEncrypted" not in json.dumps(list(rows.values()))


def test_a_subagent_belongs_to_the_session_of_its_parent(rows: dict[str, Row]) -> None:
    of_agents = [row for row in rows.values() if row.get("is_sidechain")]

    assert of_agents
    for row in of_agents:
        assert row["parent_thread_id"] == row["session_id"] != row["conversation_id"]
        assert row["attributes"]["codex"]["thread_id"] == row["conversation_id"]


def test_a_fork_has_only_its_own_messages(rows: dict[str, Row]) -> None:
    fork = [row for row in rows.values() if row["conversation_id"] == "01a1de11-19ea-7781-b754-2de057187d45"]
    assert [row["content_text"] for row in fork] == ["And in a fork?", "In the fork it is blue, too."]
