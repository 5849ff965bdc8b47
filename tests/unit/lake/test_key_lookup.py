"""Rows that exist for a dry run: committed rows and spooled rows that a flush would accept."""

from __future__ import annotations

import tracemalloc
from array import array
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from hypaware.home import Home
from hypaware.lake import dedupe
from hypaware.lake.build import BuildResult
from hypaware.lake.key_index import KeyIndex
from hypaware.lake.key_lookup import ExistingKeys
from hypaware.model.datasets import KEY_BYTES, hash_key
from hypaware.model.schemas import AI_GATEWAY_MESSAGES
from tests.support.light_home import DATASET, append, flush
from tests.support.rows import rows


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def asked(*numbers: int) -> list[tuple[bytes, int]]:
    return [(hash_key(DATASET, f"message-{number}#0"), number) for number in numbers]


def losers(home: Home, *numbers: int) -> set[int]:
    return set(ExistingKeys(home, AI_GATEWAY_MESSAGES).duplicates(asked(*numbers)))


@pytest.mark.hazard(1)
def test_committed_and_spooled_rows_exist(home: Home) -> None:
    append(home, rows(3))
    flush(home)
    append(home, rows(2, start=10))
    assert losers(home, 0, 2, 5, 10, 11, 12) == {0, 2, 10, 11}


def test_rows_that_the_index_does_not_cover_are_found_in_the_files(home: Home) -> None:
    append(home, rows(3))
    flush(home)
    with closing(KeyIndex(home.keys)) as index:
        old = index.indexed_through(DATASET, "another table")
    assert old is None
    home.keys.unlink()
    assert losers(home, 0, 5) == {0}
    assert not home.keys.exists(), "and nothing is written for it"


@pytest.mark.hazard(2)
@pytest.mark.hazard(82)
def test_a_spooled_row_that_a_flush_rejects_does_not_exist(home: Home) -> None:
    append(home, rows(1))
    sealed = home.spool / DATASET / "sealed"
    refused = {"n": 0, "v": 1, "row": {"part_id": "message-7#0", "message_id": "message-7", "part_index": 0}}
    (sealed / "1-aa.1.jsonl").write_bytes(orjson.dumps(refused) + b"\n")
    assert losers(home, 0, 7) == {0}


def test_a_key_that_occurs_twice_in_one_run_is_written_once(home: Home) -> None:
    present = ExistingKeys(home, AI_GATEWAY_MESSAGES)
    key = asked(1)[0][0]
    assert present.duplicates([(key, 9), (key, 4)]) == {9}
    assert present.duplicates([(key, 20)]) == {20}


@pytest.mark.hazard(58)
def test_matching_an_import_loads_only_its_own_keys_into_memory(tmp_path: Path) -> None:
    """A set of all keys would grow with the lake."""
    with closing(KeyIndex(tmp_path / "keys.db")) as index:
        index.add(DATASET, "uuid", 1, ((number.to_bytes(KEY_BYTES, "big"), number) for number in range(200_000)))
        news = BuildResult(
            seqs=array("q", range(10)), keys=bytearray(b"".join(bytes(KEY_BYTES - 1) + bytes([n]) for n in range(10)))
        )
        tracemalloc.start()
        try:
            assert len(dedupe.find_duplicates(index, [news]).duplicates) == 10
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 1_000_000
