"""Links of live rows to ids that a settlement replaced: a compaction corrects them."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import pytest

from hypaware import verify
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.lake import key_index, links
from hypaware.lake.parquet import check_file_row_ids
from hypaware.model.datasets import ROW_ID, SEQ
from hypaware.state.home_opener import open_home
from hypaware.testing.fault_injection import run_in_child
from hypaware.verify import DatasetAudit, VerifyCheck
from tests.support.compaction_cases import SmallFiles
from tests.support.light_home import DATASET, append, flush
from tests.support.live_rows import Part
from tests.support.rows import MESSAGES

QUESTION, ANSWER = Part(0), Part(1, "answer")
NATIVE = [QUESTION.native(), ANSWER.native()]
REPLACED = "00000000000000a1"
CONTEXT = "00000000000000c1"
LIVE = [QUESTION.live(message_id="00000000000000a0"), ANSWER.live(message_id=REPLACED)]


def context_row(number: int = 2, **columns: Any) -> dict[str, Any]:
    """Return a row without a native one that follows the model's answer."""
    given = {"message_id": CONTEXT, "previous_message_id": [REPLACED], "provider_type": "gateway", **columns}
    return Part(number, text=f"<system-reminder>{number}</system-reminder>").live(**given)


def store(home: Home, *rows: dict[str, Any]) -> None:
    append(home, list(rows))
    flush(home)


def compact(home: Home) -> None:
    assert SmallFiles(home).compact().errors == []


def link_of(home: Home, message_id: str = CONTEXT) -> list[str]:
    (row,) = (row for row in SmallFiles(home).rows() if row["message_id"] == message_id)
    found: list[str] = json.loads(row["previous_message_id"])
    return found


def check_links(home: Home) -> VerifyCheck:
    with closing(open_home(home).store) as state:
        given: dict[str, Any] = {"home": home, "store": state, "dataset": MESSAGES, "deep": True}
        # The check needs no engine.
        fields: dict[str, Any] = {name: given.get(name) for name in DatasetAudit.__dataclass_fields__}
        return verify.check_links(DatasetAudit(**fields))


@pytest.mark.hazard(105)
def test_a_link_follows_a_row_that_is_settled_in_the_lake(home: Home) -> None:
    store(home, *LIVE, context_row())
    before = {row["message_id"]: (row[SEQ], row[ROW_ID]) for row in SmallFiles(home).rows()}
    store(home, *NATIVE)
    assert link_of(home) == [REPLACED]

    compact(home)

    assert link_of(home) == [ANSWER.native_id]
    (row,) = (row for row in SmallFiles(home).rows() if row["message_id"] == CONTEXT)
    assert (row[SEQ], row[ROW_ID]) == before[CONTEXT]
    assert json.loads(row["attributes"])["gateway"]["previous_link"] == REPLACED
    assert [check_file_row_ids(DATASET, file.path).wrong for file in SmallFiles(home).files()] == [0]
    assert check_links(home).ok


@pytest.mark.hazard(105)
def test_a_link_follows_a_row_whose_native_row_was_kept_instead(home: Home) -> None:
    store(home, *LIVE, context_row(), *NATIVE)
    found = check_links(home)
    assert (found.ok, found.detail) == (
        True,
        "1 links lead to replaced ids until the next compaction, 0 lead to no row",
    )

    compact(home)

    assert link_of(home) == [ANSWER.native_id]
    assert check_links(home).detail.startswith("0 links lead to replaced ids")


@pytest.mark.hazard(105)
def test_a_link_is_corrected_in_a_file_of_another_day_and_long_after_the_settlement(home: Home) -> None:
    store(home, *LIVE)
    store(home, *NATIVE)
    compact(home)
    store(home, context_row(message_created_at="2026-11-20T08:00:00Z"))

    compact(home)

    assert link_of(home) == [ANSWER.native_id]


@pytest.mark.hazard(105)
def test_a_settled_row_has_the_links_of_its_native_row(home: Home) -> None:
    late = Part(3)
    store(home, *LIVE, *NATIVE, late.live(message_id=CONTEXT, previous_message_id=[REPLACED]))
    compact(home)
    assert link_of(home) == [ANSWER.native_id]

    store(home, late.native(previous_message_id=["native-2"]))
    compact(home)

    assert link_of(home, late.native_id) == ["native-2"]
    (row,) = (row for row in SmallFiles(home).rows() if row["message_id"] == late.native_id)
    assert "previous_link" not in json.loads(row["attributes"])["gateway"]


@pytest.mark.hazard(105)
@pytest.mark.parametrize("point", ["maintain.compact.before-commit:2", "maintain.compact.after-commit"])
def test_a_killed_compaction_leaves_links_that_the_next_one_corrects(home: Home, point: str) -> None:
    store(home, *LIVE, context_row())
    store(home, *NATIVE)
    assert not run_in_child(lambda: compact(home), point)
    assert link_of(home) == [REPLACED]

    compact(home)

    assert link_of(home) == [ANSWER.native_id]


def test_links_to_rows_that_still_exist_are_left_alone(home: Home) -> None:
    store(home, *LIVE, context_row())
    files = SmallFiles(home).files()

    compact(home)

    assert SmallFiles(home).files() == files
    assert link_of(home) == [REPLACED]


@pytest.mark.hazard(105)
def test_verify_reports_a_link_to_an_id_that_nothing_knows(home: Home) -> None:
    store(home, *LIVE, context_row(previous_message_id=["00000000000000ff"]))

    found = check_links(home)

    assert not found.ok
    assert "1 lead to no row (hyp reproject, then hyp maintain)" in found.detail


def test_links_of_rows_from_other_machines_are_left_to_those(home: Home) -> None:
    store(home, *LIVE, context_row(previous_message_id=["00000000000000ff"]))
    (file,) = SmallFiles(home).files()

    assert links._read_links(file.path, "previous_message_id", "another machine") == frozenset()
    assert links._read_links(file.path, "previous_message_id", None) == {"00000000000000ff"}


def test_a_damaged_index_does_not_stop_a_compaction(home: Home) -> None:
    store(home, *LIVE, context_row())
    key_index.remove_index(home.keys)
    home.keys.write_bytes(b"no database" * 100)
    assert metadata.find_table(home, DATASET) is not None

    compact(home)
