"""The index after the real steps of maintenance: compaction, expiry, settlement, purge."""

from __future__ import annotations

from pathlib import Path

import pytest

from hypaware.home import Home
from hypaware.index.blocks import read_session_contents
from hypaware.index.comparison import compare_index
from hypaware.index.scrub import scrub_index
from hypaware.index.store import open_index
from hypaware.state.home_opener import open_home
from tests.support.compaction_cases import SmallFiles
from tests.support.index_oracle import assert_index_agrees
from tests.support.light_home import append, flush
from tests.support.light_purge import holders, purge
from tests.support.live_rows import Part


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    open_home(home).store.close()
    return home


def assert_follows(home: Home) -> None:
    with open_index(home) as index:
        assert_index_agrees(home, index, ["text", "message"])
    assert compare_index(home) == []


@pytest.mark.hazard(112)
@pytest.mark.hazard(113)
def test_compaction_expiry_and_purge(home: Home) -> None:
    lake = SmallFiles(home)
    lake.commit(rows=5, times=8)
    lake.commit(day=1, rows=3, times=6)
    assert_follows(home)
    assert lake.compact(force=True).files_after == 2
    assert_follows(home)
    lake.expire()
    assert_follows(home)
    purge(home, "session", "session-1")
    scrub_index(home)
    assert holders(home, "session-1") == set()
    assert_follows(home)


@pytest.mark.hazard(112)
def test_a_settlement(home: Home) -> None:
    parts = [Part(number, kind) for number, kind in enumerate(("user", "answer", "call"), 1)]
    append(home, [part.live() for part in parts])
    assert_follows(home)
    flush(home)
    assert_follows(home)
    append(home, [part.native() for part in parts])
    assert flush(home).rows.settled == 3
    assert_follows(home)
    SmallFiles(home).compact(force=True)
    assert_follows(home)
    with open_index(home) as index:
        ids = [content.message_id for content in read_session_contents(index, 1)]
    assert ids == [part.native_id for part in parts]
