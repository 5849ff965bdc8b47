"""What the side file remembers of deliveries, and what counts when a state is not the one that it was."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from hypaware import opening
from hypaware.home import Home
from hypaware.lake import metadata, rebuild
from hypaware.lake.metadata import Metadata
from hypaware.lake.rebuild import LakeFacts
from hypaware.opening import OpenHome, open_home
from hypaware.state import dead_letters, deliveries, flushes, intents, mirror, streams, whose
from hypaware.state.dead_letters import DeadLetter
from hypaware.state.intents import Intent, PlannedChunk
from hypaware.state.store import Store
from hypaware.state.stream_key import StreamKey

KEY = StreamKey("here", "ai_gateway_messages", "claude")


def _stream(opened: OpenHome, key: StreamKey, watermark: int) -> None:
    """Delivered up to there, as the side file knows too."""
    with opened.store.transaction() as connection:
        if not streams.load(connection, key):
            streams.create(connection, key, "folder:there")
        intents.plan(connection, Intent(key, watermark, watermark + 1, ()))
        intents.cancel(connection, key)
        streams.raise_watermark(connection, key, watermark)
    mirror.write(opened.home.mirror, opened.store)


def _forget(home: Home) -> None:
    for suffix in ("", "-wal", "-shm"):
        home.state.with_name(home.state.name + suffix).unlink(missing_ok=True)


def _copied(opened: OpenHome, to: Path) -> None:
    opened.store.close()
    shutil.copy(opened.home.state, to)


def test_deliveries_are_restored_from_the_mirror_unchanged(store: Store) -> None:
    chunk = PlannedChunk("chunk", "incarnation", 3, 7, 4)
    with store.transaction() as connection:
        flushes.raise_next_seq(connection, 8)
        streams.create(connection, KEY, "folder:there")
        streams.raise_watermark(connection, KEY, 3)
        intents.plan(connection, Intent(KEY, 3, 7, (chunk,)))
        dead_letters.bury(connection, DeadLetter("letter", KEY, "incarnation", 1, 2, 1, "no", "then"), b"rows")
        streams.lost_memory(connection)
        held = deliveries.of_state(connection)
        assert deliveries.from_json(deliveries.as_json(held)) == replace(
            held, streams=tuple(replace(stream, updated_at=None) for stream in held.streams)
        )
        deliveries.restore(connection, held)
        after = deliveries.of_state(connection)
        assert (after.intents, after.letters, after.lost) == (held.intents, held.letters, True)
        assert [(stream.key, stream.watermark) for stream in after.streams] == [(KEY, 3)]
        assert dead_letters.payload(connection, "letter") == b"rows"
        assert after.step > held.step


def test_a_lost_history_is_still_known_in_the_next_state(home: Home) -> None:
    """Else a stream that is new to the third state would send everything to a destination that nobody can ask."""
    opened = open_home(home)
    with opened.store.transaction() as connection:
        deliveries.distrust(connection)
    mirror.write(home.mirror, opened.store)
    opened.store.close()
    _forget(home)
    opened = open_home(home)
    with opened.store.transaction() as connection:
        assert streams.create(connection, KEY, "folder:there").history == streams.LOST
    opened.store.close()


@pytest.mark.hazard(73)
def test_a_stream_renamed_after_the_copy_is_not_restored_under_its_old_name(home: Home, tmp_path: Path) -> None:
    """Renamed back, it would go on from a watermark of long ago."""
    opened = open_home(home)
    _stream(opened, KEY, 10)
    with opened.store.transaction() as connection:
        dead_letters.bury(connection, DeadLetter("letter", KEY, "incarnation", 1, 2, 1, "no", "then"), b"rows")
    _copied(opened, tmp_path / "copy")
    with opened.store.transaction() as connection:
        dead_letters.drop(connection, "letter")
        renamed = streams.rename(connection, KEY, "other")
    _stream(opened, renamed, 50)
    opened.store.close()
    _forget(home)
    shutil.copy(tmp_path / "copy", home.state)
    opened = open_home(home)
    with opened.store.reading() as connection:
        found = deliveries.of_state(connection)
    assert [(stream.key, stream.watermark) for stream in found.streams] == [(renamed, 50)]
    assert found.letters == ()
    opened.store.close()


@pytest.mark.hazard(73)
def test_a_state_of_an_earlier_incarnation_continues_after_all_later_ones(home: Home, tmp_path: Path) -> None:
    """What was sent in them must still be asked for under their names."""
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
        assert whose.load(connection) == opened.identity
        assert [stream.watermark for stream in streams.all_streams(connection)] == [20]
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


def _lake_up_to(floor: int) -> LakeFacts:
    return LakeFacts({KEY.dataset: Metadata(Path(), "", {metadata.FLOOR: str(floor)}, (), None, (), {})}, floor)


@pytest.mark.hazard(73)
@pytest.mark.parametrize("with_side_file", [False, True])
def test_watermarks_are_unknown_if_the_lake_is_ahead_of_state_and_mirror(home: Home, with_side_file: bool) -> None:
    """State and side file, or the state alone, came from an earlier copy: rows were delivered that they do not know."""
    opened = open_home(home)
    _stream(opened, KEY, 10)
    opened.store.close()
    with mock.patch.object(rebuild, "read_facts", return_value=_lake_up_to(500)):
        if not with_side_file:
            home.mirror.unlink()
        opened = open_home(home)
        if with_side_file:
            opened = opening.catch_up(home, opened.store, "as an engine does when it starts")
    assert opened.rebuilt
    with opened.store.reading() as connection:
        (stream,) = streams.all_streams(connection)
        assert flushes.next_seq(connection) == 501
    assert (stream.watermark, stream.history) == (None, streams.LOST)
    opened.store.close()


@pytest.mark.hazard(73)
def test_the_mirror_is_used_if_it_is_ahead_of_the_state(home: Home, tmp_path: Path) -> None:
    opened = open_home(home)
    _copied(opened, tmp_path / "copy")
    with opened.store.transaction() as connection:
        flushes.raise_next_seq(connection, 20)
    _stream(opened, KEY, 10)
    opened.store.close()
    _forget(home)
    shutil.copy(tmp_path / "copy", home.state)
    with mock.patch.object(rebuild, "read_facts", return_value=_lake_up_to(500)):
        opened = open_home(home)
    with opened.store.reading() as connection:
        (stream,) = streams.all_streams(connection)
    assert stream.watermark == 10
    opened.store.close()


@pytest.mark.hazard(73)
def test_incarnations_that_only_the_lake_records_are_kept(home: Home) -> None:
    """State and side file came from before a life that delivered rows: they are asked for under its name."""
    opened = open_home(home)
    first = opened.identity.incarnation
    told = {metadata.INCARNATION: "second", metadata.PARENTS: first, metadata.FORKS: "10", metadata.FLOOR: "500"}
    stale = {metadata.INCARNATION: first, metadata.PARENTS: "", metadata.FORKS: ""}
    tables = {
        name: Metadata(Path(), "", properties, (), None, (), {})
        for name, properties in {KEY.dataset: told, "other": stale}.items()
    }
    with mock.patch.object(rebuild, "read_facts", return_value=LakeFacts(tables, 500)):
        opened = opening.catch_up(home, opened.store, "as an engine does when it starts")
    assert opened.identity.parents == (first, "second")
    ranges = [(epoch.after, epoch.through) for epoch in opened.identity.incarnation_ranges()]
    assert ranges == [(0, 10), (10, 500), (500, None)]
    opened.store.close()
