"""Watermarks follow acknowledgements in sequence order and only rise."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hypaware.config.schema import Config, SinkConfig
from hypaware.export.delivery import DeliveryOptions, Driver
from hypaware.home import Home
from hypaware.state import streams
from hypaware.state.streams import StreamKey
from hypaware.testing import fault_injection
from hypaware.testing.contract import SINK, SinkHome
from hypaware.testing.fault_injection import run_in_child
from hypaware.testing.folder_sink import FOLDER, FolderDestination
from hypaware.testing.sample_lake import DATASET, SampleLake

KEY = StreamKey(SINK, DATASET, "claude")


@pytest.fixture
def there(tmp_path: Path) -> FolderDestination:
    return FolderDestination(tmp_path / "there")


@pytest.fixture
def site(tmp_path: Path, there: FolderDestination) -> SinkHome:
    sink = SinkConfig(FOLDER.name, "* * * * *", (DATASET,), {"folder": str(there.folder)})
    return SinkHome(Home(tmp_path / "home"), SampleLake(tmp_path / "lake", page_rows=20), Config(sinks={SINK: sink}))


def _watermark(site: SinkHome) -> int | None:
    with site.opened() as opened, opened.store.reading() as connection:
        found = streams.load_stream(connection, KEY)
        return found.watermark if found else None


@pytest.mark.hazard(21)
def test_the_watermark_waits_for_every_chunk_if_the_highest_row_is_read_first(
    site: SinkHome, there: FolderDestination
) -> None:
    with fault_injection.register_kind(FOLDER):
        site.commit(20, sources=("claude",))
        site.lake.compact()  # the files now hold the rows in reverse order
        assert not run_in_child(site.deliver, "export.ack.after-commit:3")
        assert [(chunk["after"], chunk["last"]) for chunk in there.chunks()] == [(0, 3), (3, 6), (6, 9)]
        assert _watermark(site) == 3  # the first intent held one chunk, the second is not finished
        assert site.deliver().status == "ok"
        assert _watermark(site) == 20
        assert sorted(there.arrived()) == sorted(site.lake.message_ids())


@pytest.mark.hazard(26)
def test_a_watermark_only_rises(site: SinkHome) -> None:
    with fault_injection.register_kind(FOLDER):
        site.commit(20, sources=("claude",))
        site.deliver()
        with site.opened() as opened, opened.store.transaction() as connection:
            streams.raise_watermark(connection, KEY, 7)
            assert streams.load_intent(connection, KEY) is None
        assert _watermark(site) == 20


@pytest.mark.hazard(29)
def test_a_scheduled_round_skips_a_stream_until_its_retry_time(site: SinkHome, there: FolderDestination) -> None:
    with fault_injection.register_kind(FOLDER):
        site.commit(3, sources=("claude",))
        there.faults.set("cut", 1)
        assert site.deliver(max_wait=0.0).status == "failed"
        site.commit(3, start=3, sources=("codex",))
        with site.opened() as opened:
            driver = Driver(opened, site.config, site.lake, DeliveryOptions(0.0, patient=True))
            report = asyncio.run(driver.deliver(SINK))
        statuses = {stream.key.source: (stream.rows, (stream.error or {}).get("kind")) for stream in report.streams}
        assert statuses == {"claude": (0, "waiting"), "codex": (3, None)}
        assert site.deliver().status == "ok"  # a user's command tries at once
        assert len(there.arrived()) == 6


@pytest.mark.hazard(88)
def test_an_uncertain_chunk_is_not_split_if_the_destination_cannot_be_queried(
    tmp_path: Path, site: SinkHome, there: FolderDestination
) -> None:
    sink = site.config.sinks[SINK]
    opaque = SinkConfig(sink.kind, sink.schedule, sink.datasets, {**sink.options, "can_be_queried": False})
    site = SinkHome(site.home, site.lake, Config(sinks={SINK: opaque}))
    with fault_injection.register_kind(FOLDER):
        site.commit(3, sources=("claude",))
        there.faults.set("lose_answer", 1)
        site.deliver(max_wait=0.0)
        (stored,) = there.folder.glob("*.json")
        hidden = stored.rename(stored.with_suffix(".hidden"))  # now a proxy responds instead of the destination
        there.faults.set("refuse", "message-1")
        (stream,) = site.deliver().streams
        assert stream.held
        assert list(there.folder.glob("*.json")) == []
        hidden.rename(stored)
        there.faults.clear()
        assert site.deliver().status == "ok"
        assert sorted(there.arrived()) == ["message-0", "message-1", "message-2"]
