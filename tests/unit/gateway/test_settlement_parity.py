"""Conversations of real clients, live and imported, through a lake: each part becomes one row."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from hypaware.home import Home
from hypaware.lake.flush import FlushReport
from hypaware.model.datasets import Row
from hypaware.model.schemas import GATEWAY_TYPE
from hypaware.spool.writer import Spool
from hypaware.state.home_opener import read_identity
from tests.support.compaction_cases import SmallFiles
from tests.support.light_home import DATASET, NO_TIMER, flush
from tests.support.light_lake import read_lake
from tests.unit.gateway.test_live_native_parity import SCENARIOS, Joined, live_rows, transcript_rows


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Row], list[Row], list[Row]]:
    """Live rows, imported rows of the same sessions, and the live rows that no transcript has."""
    by_session = transcript_rows(tmp_path_factory.mktemp("transcripts"))
    live, imported, alone = [], [], []
    for scenario in SCENARIOS:
        told = list(live_rows(scenario))
        sessions = sorted({row["session_id"] for row in told})
        written = [row for session in sessions for row in by_session[session]]
        live += told
        imported += written
        alone += Joined(written, told).live_only
    return live, imported, alone


def store(home: Home, rows: list[Row]) -> FlushReport:
    with Spool(home, NO_TIMER) as spool:
        spool.append(DATASET, [{**row, "gateway_id": read_identity(home).gateway_id} for row in rows])
    return flush(home)


@pytest.mark.hazard(68)
@pytest.mark.hazard(105)
@pytest.mark.parametrize("first", ["live", "imported"])
def test_each_part_of_a_real_conversation_is_one_row_in_either_order(
    home: Home, recorded: tuple[list[Row], list[Row], list[Row]], first: str
) -> None:
    live, imported, alone = recorded
    store(home, live if first == "live" else imported)
    second = store(home, imported if first == "live" else live)
    assert second.rows.rejected == 0
    assert SmallFiles(home).compact(force=True).errors == []
    found = Counter(row["part_id"] for row in read_lake(home, DATASET))
    assert max(found.values()) == 1
    native = {row["part_id"] for row in imported}
    assert native <= found.keys()
    assert len(found) - len(native) == len({row["part_id"] for row in alone} - native)
    rows = read_lake(home, DATASET)
    assert {row["part_id"] for row in rows if row["provider_type"] != GATEWAY_TYPE} == native
    messages = {row["message_id"] for row in rows}
    links = {link for row in rows for link in json.loads(row["previous_message_id"])}
    assert [link for link in links - messages if len(link) == 16] == []
    assert store(home, [*live, *imported]).rows.written == 0
