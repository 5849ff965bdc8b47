"""Deliveries in the mirror, and how they are restored when a state was lost or is stale."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from unittest import mock

import pytest

from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.iceberg.metadata import TableMetadata
from hypaware.state import dead_letters, flushes, home_opener, mirror, recovery, store, streams
from hypaware.state.dead_letters import DeadLetter
from hypaware.state.home_opener import OpenHome, open_home
from hypaware.state.recovery import LakeSummary
from hypaware.state.store import StateStore
from hypaware.state.streams import Intent, PlannedChunk, StreamKey

KEY = StreamKey("here", "ai_gateway_messages", "claude")


def _stream(opened: OpenHome, key: StreamKey, watermark: int) -> None:
    """Deliver up to this sequence, in the state and in the mirror."""
    with opened.store.transaction() as connection:
        if not streams.load_stream(connection, key):
            streams.create_stream(connection, key, "folder:there")
        streams.save_intent(connection, Intent(key, watermark, watermark + 1, ()))
        streams.cancel_intent(connection, key)
        streams.raise_watermark(connection, key, watermark)
    mirror.write_mirror(opened.home.mirror, opened.store)


def _forget(home: Home) -> None:
    for suffix in ("", "-wal", "-shm"):
        home.state.with_name(home.state.name + suffix).unlink(missing_ok=True)


def _copied(opened: OpenHome, to: Path) -> None:
    opened.store.close()
    shutil.copy(opened.home.state, to)


def test_deliveries_are_restored_from_the_mirror_unchanged(store: StateStore) -> None:
    chunk = PlannedChunk("chunk", "incarnation", 3, 7, 4)
    with store.transaction() as connection:
        flushes.raise_next_sequence(connection, 8)
        streams.create_stream(connection, KEY, "folder:there")
        streams.raise_watermark(connection, KEY, 3)
        streams.save_intent(connection, Intent(KEY, 3, 7, (chunk,)))
        dead_letters.add_letter(connection, DeadLetter("letter", KEY, "incarnation", 1, 2, 1, "no", "then"), b"rows")
        streams.mark_history_lost(connection)
        planned, letters = streams.load_intent(connection, KEY), dead_letters.list_letters(connection)
        held = json.loads(json.dumps(mirror.read_deliveries(connection)))
        mirror.restore_deliveries(connection, held)
        after = mirror.read_deliveries(connection)
        assert {**after, "step": 0} == {**held, "step": 0, "lost": True}
        assert streams.load_intent(connection, KEY) == planned == Intent(KEY, 3, 7, (chunk,))
        assert dead_letters.list_letters(connection) == letters
        assert [(stream.key, stream.watermark) for stream in streams.list_streams(connection)] == [(KEY, 3)]
        assert dead_letters.load_payload(connection, "letter") == b"rows"
        assert after["step"] > held["step"]


def test_a_lost_history_is_still_known_in_the_next_state(home: Home) -> None:
    """Otherwise a new stream in the third state would send everything to a destination that cannot be asked."""
    opened = open_home(home)
    with opened.store.transaction() as connection:
        mirror.mark_unknown(connection, streams.list_streams(connection))
    mirror.write_mirror(home.mirror, opened.store)
    opened.store.close()
    _forget(home)
    opened = open_home(home)
    with opened.store.transaction() as connection:
        assert streams.create_stream(connection, KEY, "folder:there").history == streams.HISTORY_LOST
    opened.store.close()


@pytest.mark.hazard(73)
def test_a_stream_renamed_after_the_copy_is_not_restored_under_its_old_name(home: Home, tmp_path: Path) -> None:
    """If the sink is renamed back, the stream would continue from an old watermark."""
    opened = open_home(home)
    _stream(opened, KEY, 10)
    with opened.store.transaction() as connection:
        dead_letters.add_letter(connection, DeadLetter("letter", KEY, "incarnation", 1, 2, 1, "no", "then"), b"rows")
    _copied(opened, tmp_path / "copy")
    with opened.store.transaction() as connection:
        dead_letters.drop_letter(connection, "letter")
        renamed = streams.rename_stream(connection, KEY, "other")
    _stream(opened, renamed, 50)
    opened.store.close()
    _forget(home)
    shutil.copy(tmp_path / "copy", home.state)
    opened = open_home(home)
    with opened.store.reading() as connection:
        assert [(stream.key, stream.watermark) for stream in streams.list_streams(connection)] == [(renamed, 50)]
        assert dead_letters.list_letters(connection) == []
    opened.store.close()


@pytest.mark.hazard(73)
def test_a_state_of_an_earlier_incarnation_continues_after_all_later_ones(home: Home, tmp_path: Path) -> None:
    """Rows sent in them must still be looked up under those incarnations."""
    opened = open_home(home)
    _stream(opened, KEY, 10)
    _copied(opened, tmp_path / "copy")
    first = opened.identity.incarnation
    _forget(home)
    opened = open_home(home)
    second = opened.identity.incarnation
    _stream(opened, KEY, 20)
    opened.store.close()
    _forget(home)
    shutil.copy(tmp_path / "copy", home.state)
    opened = open_home(home)
    assert opened.identity.parents == (first, second)
    with opened.store.reading() as connection:
        assert store.load_identity(connection) == opened.identity
        assert [stream.watermark for stream in streams.list_streams(connection)] == [20]
    opened.store.close()


@pytest.mark.hazard(73)
def test_a_state_of_an_earlier_incarnation_is_detected_even_with_a_higher_step(home: Home, tmp_path: Path) -> None:
    opened = open_home(home)
    for watermark in range(1, 6):
        _stream(opened, KEY, watermark)
    _copied(opened, tmp_path / "copy")
    _forget(home)
    home.mirror.unlink()
    opened = open_home(home)
    second = opened.identity.incarnation
    opened.store.close()
    _forget(home)
    shutil.copy(tmp_path / "copy", home.state)
    opened = open_home(home)
    assert opened.rebuilt
    assert second in opened.identity.parents
    opened.store.close()


def _lake_up_to(floor: int) -> LakeSummary:
    return LakeSummary(
        {KEY.dataset: TableMetadata(Path(), "", {metadata.FLOOR_PROPERTY: str(floor)}, (), None, (), {})}, floor
    )


@pytest.mark.hazard(73)
@pytest.mark.parametrize("with_side_file", [False, True])
def test_watermarks_are_unknown_if_the_lake_is_ahead_of_state_and_mirror(home: Home, with_side_file: bool) -> None:
    """The state, with or without the mirror, was restored from an earlier copy and misses deliveries."""
    opened = open_home(home)
    _stream(opened, KEY, 10)
    opened.store.close()
    with mock.patch.object(recovery, "summarize_lake", return_value=_lake_up_to(500)):
        if not with_side_file:
            home.mirror.unlink()
        opened = open_home(home)
        if with_side_file:
            opened = home_opener.catch_up(home, opened.store, "as an engine does when it starts")
    assert opened.rebuilt
    with opened.store.reading() as connection:
        (stream,) = streams.list_streams(connection)
        assert flushes.next_sequence(connection) == 501
    assert (stream.watermark, stream.history) == (None, streams.HISTORY_LOST)
    opened.store.close()


@pytest.mark.hazard(73)
def test_the_mirror_is_used_if_it_is_ahead_of_the_state(home: Home, tmp_path: Path) -> None:
    opened = open_home(home)
    _copied(opened, tmp_path / "copy")
    with opened.store.transaction() as connection:
        flushes.raise_next_sequence(connection, 20)
    _stream(opened, KEY, 10)
    opened.store.close()
    _forget(home)
    shutil.copy(tmp_path / "copy", home.state)
    with mock.patch.object(recovery, "summarize_lake", return_value=_lake_up_to(500)):
        opened = open_home(home)
    with opened.store.reading() as connection:
        (stream,) = streams.list_streams(connection)
    assert stream.watermark == 10
    opened.store.close()


@pytest.mark.hazard(73)
def test_incarnations_that_only_the_lake_records_are_kept(home: Home) -> None:
    """State and mirror are older than an incarnation that delivered rows, which are looked up under it."""
    opened = open_home(home)
    first = opened.identity.incarnation
    told = {
        metadata.INCARNATION_PROPERTY: "second",
        metadata.PARENTS_PROPERTY: first,
        metadata.FORKS_PROPERTY: "10",
        metadata.FLOOR_PROPERTY: "500",
    }
    stale = {metadata.INCARNATION_PROPERTY: first, metadata.PARENTS_PROPERTY: "", metadata.FORKS_PROPERTY: ""}
    tables = {
        name: TableMetadata(Path(), "", properties, (), None, (), {})
        for name, properties in {KEY.dataset: told, "other": stale}.items()
    }
    with mock.patch.object(recovery, "summarize_lake", return_value=LakeSummary(tables, 500)):
        opened = home_opener.catch_up(home, opened.store, "as an engine does when it starts")
    assert opened.identity.parents == (first, "second")
    ranges = [(epoch.after, epoch.through) for epoch in opened.identity.incarnation_ranges()]
    assert ranges == [(0, 10), (10, 500), (500, None)]
    opened.store.close()
