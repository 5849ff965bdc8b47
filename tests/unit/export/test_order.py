"""Watermarks: they follow what was acknowledged, in the order of the sequence, and only rise."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hypaware.config.schema import Config, SinkConfig
from hypaware.export import configured
from hypaware.export.driver import Driver, Terms
from hypaware.home import Home
from hypaware.state import intents, streams
from hypaware.state.stream_key import StreamKey
from hypaware.testing.contract import SINK, Place
from hypaware.testing.destination import FOLDER, FolderDestination
from hypaware.testing.lives import live
from hypaware.testing.sample_lake import DATASET, SampleLake

KEY = StreamKey(SINK, DATASET, "claude")


@pytest.fixture
def there(tmp_path: Path) -> FolderDestination:
    return FolderDestination(tmp_path / "there")


@pytest.fixture
def place(tmp_path: Path, there: FolderDestination) -> Place:
    sink = SinkConfig(FOLDER.name, "* * * * *", (DATASET,), {"folder": str(there.folder)})
    return Place(Home(tmp_path / "home"), SampleLake(tmp_path / "lake", page_rows=20), Config(sinks={SINK: sink}))


def _watermark(place: Place) -> int | None:
    with place.opened() as opened, opened.store.reading() as connection:
        found = streams.load(connection, KEY)
        return found.watermark if found else None


@pytest.mark.hazard(21)
def test_the_watermark_waits_for_every_chunk_though_the_highest_row_came_first_off_the_disk(
    place: Place, there: FolderDestination
) -> None:
    with configured.also(FOLDER):
        place.commit(20, sources=("claude",))
        place.lake.compact()  # the files now hold the rows in the opposite order
        assert not live(place.deliver, "export.ack.after-commit:3")
        assert [(chunk["after"], chunk["last"]) for chunk in there.chunks()] == [(0, 3), (3, 6), (6, 9)]
        assert _watermark(place) == 3  # the first plan held one chunk, the second waits for its end
        assert place.deliver().status == "ok"
        assert _watermark(place) == 20
        assert sorted(there.arrived()) == sorted(place.lake.message_ids())


@pytest.mark.hazard(26)
def test_a_watermark_only_rises(place: Place) -> None:
    with configured.also(FOLDER):
        place.commit(20, sources=("claude",))
        place.deliver()
        with place.opened() as opened, opened.store.transaction() as connection:
            streams.raise_watermark(connection, KEY, 7)
            assert intents.pending(connection, KEY) is None
        assert _watermark(place) == 20


@pytest.mark.hazard(29)
def test_a_round_by_schedule_leaves_a_stream_in_peace_whose_destination_asked_for_time(
    place: Place, there: FolderDestination
) -> None:
    with configured.also(FOLDER):
        place.commit(3, sources=("claude",))
        there.set_fault("cut", 1)
        assert place.deliver(max_wait=0.0).status == "failed"
        place.commit(3, start=3, sources=("codex",))
        with place.opened() as opened:
            driver = Driver(opened, place.config, place.lake, Terms(0.0, patient=True))
            (report,) = asyncio.run(driver.deliver([SINK]))
        told = {stream.key.source: (stream.rows, (stream.error or {}).get("kind")) for stream in report.streams}
        assert told == {"claude": (0, "waiting"), "codex": (3, None)}
        assert place.deliver().status == "ok"  # a user's own word is not kept waiting
        assert len(there.arrived()) == 6


@pytest.mark.hazard(88)
def test_a_chunk_that_may_have_arrived_is_not_cut_under_other_ids_where_nobody_can_be_asked(
    tmp_path: Path, place: Place, there: FolderDestination
) -> None:
    sink = place.config.sinks[SINK]
    mute = SinkConfig(sink.kind, sink.schedule, sink.datasets, {**sink.options, "can_be_asked": False})
    place = Place(place.home, place.lake, Config(sinks={SINK: mute}))
    with configured.also(FOLDER):
        place.commit(3, sources=("claude",))
        there.set_fault("lose-answer", 1)
        place.deliver(max_wait=0.0)
        (stored,) = there.folder.glob("*.json")
        hidden = stored.rename(stored.with_suffix(".hidden"))  # something in between now answers for the destination
        there.set_fault("refuse", "message-1")
        (stream,) = place.deliver().streams
        assert stream.held
        assert list(there.folder.glob("*.json")) == []
        hidden.rename(stored)
        there.clear_faults()
        assert place.deliver().status == "ok"
        assert sorted(there.arrived()) == ["message-0", "message-1", "message-2"]
