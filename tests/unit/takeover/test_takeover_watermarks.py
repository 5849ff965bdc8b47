"""Continuing the original's watermarks: delivered rows are not delivered again, all other rows are."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hypaware.errors import HypError, UsageError
from hypaware.home import Home
from hypaware.model.datasets import SEQ
from hypaware.state import mirror, streams
from hypaware.state.home_opener import open_home
from hypaware.state.streams import PendingWatermark, StreamKey
from tests.support.delivery_home import DeliveryHome, key
from tests.support.light_home import append, flush
from tests.support.light_lake import read_lake
from tests.support.light_takeover import arrived, deliver, take_over
from tests.support.original_cache import DATASET, Builder, config_of, installation, row, spool, watermark


class Site:
    """A home with a sink `team` that delivers into a directory, and an installation of the original."""

    def __init__(self, tmp_path: Path) -> None:
        self.home = Home(tmp_path / "home")
        self.folder = tmp_path / "delivered"
        self.cache = tmp_path / "old" / "hypaware" / "cache"
        self.delivery = DeliveryHome(self.home)
        self.delivery.declare(team=self.folder)

    def table(self, *files: list[tuple[int, int | None]], partition: str = "source=claude") -> Builder:
        """Make a table; each file is given as (number of the row, old sequence)."""
        builder = Builder(self.cache, partition)
        for file in files:
            builder.add([row(number) for number, _ in file], [seq for _, seq in file])
        return builder.commit()

    def delivered_by_original(self, **sinks: Path) -> None:
        config_of(self.cache, **{name: {"dir": str(folder)} for name, folder in sinks.items()})

    def take(self, **args: Any) -> dict[str, Any]:
        return take_over(self.home, self.cache, **args)

    def deliver(self) -> list[int]:
        """Deliver and return the numbers of all rows that have arrived."""
        assert deliver(self.home, "team") == "ok"
        return sorted(int(part.removeprefix("old-").removesuffix("#0")) for part in arrived(self.folder))

    def watermark(self) -> int | None:
        with closing(open_home(self.home).store) as store, store.reading() as connection:
            found = streams.load_stream(connection, key("team"))
        return found.watermark if found else None

    def lake(self) -> list[dict[str, Any]]:
        return read_lake(self.home, DATASET)

    def is_unchanged(self) -> bool:
        return self.lake() == [] and self.watermark() is None


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def numbered(count: int, first: int = 1) -> list[tuple[int, int | None]]:
    return [(number, number) for number in range(first, first + count)]


def test_only_rows_above_the_watermark_of_the_sample_are_delivered(site: Site) -> None:
    installation(site.cache.parents[1])
    watermark(site.cache, "team", 1000)
    site.delivered_by_original(team=site.folder)
    report = site.take()
    (mark,) = report["watermarks"]
    assert (mark["old"], mark["new"], mark["honoured"], mark["to"]) == (1000, 1000, True, "team")
    assert deliver(site.home, "team") == "ok"
    parts = arrived(site.folder)
    assert len(parts) == len(set(parts)) == 481
    delivered = {each["part_id"] for each in site.lake() if each[SEQ] > 1000}
    assert set(parts) == delivered


@pytest.mark.hazard(23)
def test_rows_without_a_sequence_count_as_delivered_if_there_is_a_watermark(site: Site) -> None:
    site.table([(1, None), (2, None), (5, 5), (6, 6)], [(3, 3), (7, 7)])
    spool(site.cache, [row(8)])
    watermark(site.cache, "team", 5)
    site.delivered_by_original(team=site.folder)
    site.take()
    assert site.deliver() == [6, 7, 8]
    assert site.deliver() == [6, 7, 8]


@pytest.mark.hazard(23)
def test_without_a_watermark_rows_without_a_sequence_are_delivered_once(site: Site) -> None:
    site.table([(1, None), (2, None), (5, 5)])
    site.take()
    assert site.deliver() == [1, 2, 5]
    assert site.deliver() == [1, 2, 5]


@pytest.mark.hazard(46)
def test_each_partition_of_the_older_layout_has_its_own_watermark(site: Site) -> None:
    for day, rows in (("2026-09-01", [(1, None), (2, None)]), ("2026-09-02", [(3, None)])):
        builder = Builder(site.cache, f"client=claude/date={day}", "epoch=0")
        builder.add([row(number) for number, _ in rows], None)
        builder.commit({"epoch": 0, "rowCount": len(rows)})
    site.table([(4, 4), (5, 5)])
    watermark(site.cache, "team", 0, partition="client=claude/date=2026-09-01")
    watermark(site.cache, "team", 0, partition="client=claude/date=2026-08-31")
    site.delivered_by_original(team=site.folder)
    report = site.take()
    assert {each["partition"]: each["why"] for each in report["watermarks"] if not each["honoured"]} == {
        "client=claude/date=2026-08-31": "its partition is not in the cache"
    }
    assert site.deliver() == [3, 4, 5]


def test_an_unknown_destination_requires_an_option_and_changes_nothing(site: Site) -> None:
    site.table(numbered(6))
    watermark(site.cache, "team", 4)
    with pytest.raises(HypError, match=r"--same-destination team.*--other-destination team") as refused:
        site.take()
    assert refused.value.kind == "destination_unclear"
    assert site.is_unchanged()
    site.take(same=["team"])
    assert site.deliver() == [5, 6]


def test_another_destination_gets_all_rows_with_the_option(site: Site) -> None:
    site.table(numbered(6))
    watermark(site.cache, "team", 4)
    site.delivered_by_original(team=site.folder.with_name("another"))
    with pytest.raises(HypError, match=r"delivered to file://.*another"):
        site.take()
    (mark,) = site.take(other=["team"])["watermarks"]
    assert (mark["honoured"], mark["new"]) == (False, None)
    assert site.deliver() == [1, 2, 3, 4, 5, 6]


def test_a_renamed_sink_continues(site: Site) -> None:
    site.table(numbered(6))
    watermark(site.cache, "central", 4)
    (mark,) = site.take()["watermarks"]
    assert "no sink central; to continue it under another name, add --sink central=NAME" in mark["why"]
    again = site.take(sinks={"central": "team"}, same=["team"])
    assert [each["new"] for each in again["watermarks"]] == [4]
    assert site.deliver() == [5, 6]


def test_options_for_an_unknown_sink_are_usage_errors(site: Site) -> None:
    site.table(numbered(2))
    for args in ({"same": ["tema"]}, {"sinks": {"central": "unknown"}}, {"same": ["team"], "other": ["team"]}):
        with pytest.raises(UsageError):
            site.take(**args)
    assert site.is_unchanged()


def test_undelivered_rows_of_this_home_never_count_as_delivered(site: Site) -> None:
    append(site.home, [{**row(50), "gateway_id": None}])
    flush(site.home)
    site.table(numbered(6))
    watermark(site.cache, "team", 4)
    site.delivered_by_original(team=site.folder)
    with pytest.raises(HypError, match=r"1 undelivered rows.*Run this first: hyp export team") as refused:
        site.take()
    assert refused.value.kind == "stream_not_ready"
    assert len(site.lake()) == 1
    assert site.deliver() == [50]
    site.take()
    assert site.deliver() == [5, 6, 50]


def test_existing_rows_that_the_original_delivered_are_not_sent(site: Site) -> None:
    """The rows were imported here from the same transcripts before the takeover."""
    append(site.home, [{**row(number), "gateway_id": None} for number in (1, 3)])
    flush(site.home)
    site.table(numbered(6))
    watermark(site.cache, "team", 4)
    site.delivered_by_original(team=site.folder)
    site.take()
    assert site.deliver() == [5, 6]


def test_a_watermark_that_advanced_is_used_by_the_next_run(site: Site) -> None:
    builder = site.table(numbered(6))
    watermark(site.cache, "team", 2)
    site.delivered_by_original(team=site.folder)
    site.take()
    assert site.watermark() == 2
    watermark(site.cache, "team", 4)
    (mark,) = site.take()["watermarks"]
    assert mark["new"] == site.watermark() == 4
    # The original continued: new rows, and more of them delivered, including rows imported here.
    builder.add([row(7), row(8)], [7, 8])
    builder.commit()
    watermark(site.cache, "team", 7)
    (mark,) = site.take()["watermarks"]
    assert mark["new"] == site.watermark()
    assert site.deliver() == [8]
    assert site.take()["datasets"][0]["flush_id"] is None


def test_a_watermark_stops_at_the_newest_row_that_was_accepted(site: Site) -> None:
    """A stream whose watermark is above its newest row could never continue."""
    builder = Builder(site.cache)
    builder.add([row(1), row(2), row(3, part_id="wrong")], [1, 2, 3])
    builder.commit()
    watermark(site.cache, "team", 3)
    site.delivered_by_original(team=site.folder)
    site.take()
    assert site.watermark() == 2
    assert site.deliver() == []
    append(site.home, [{**row(9), "gateway_id": None}])
    flush(site.home)
    assert site.deliver() == [9]


def test_each_sink_has_its_own_watermark(site: Site) -> None:
    second = site.folder.with_name("second")
    site.delivery.declare(team=site.folder, second=second)
    site.table(numbered(6))
    watermark(site.cache, "team", 4)
    watermark(site.cache, "second", 1)
    site.delivered_by_original(team=site.folder, second=second)
    site.take()
    assert site.deliver() == [5, 6]
    assert deliver(site.home, "second") == "ok"
    assert Counter(arrived(second)) == Counter(f"old-{number}#0" for number in (2, 3, 4, 5, 6))


def test_interleaved_delivered_and_undelivered_rows_are_refused(site: Site) -> None:
    """Two partitions of one source with interleaved sequences, of which only one has a watermark."""
    site.table([(1, 1), (3, 3)])
    site.table([(2, 2), (4, 4)], partition="client=claude/date=2026-09-01")
    watermark(site.cache, "team", 3)
    site.delivered_by_original(team=site.folder)
    with pytest.raises(HypError, match="but not all rows before them") as refused:
        site.take()
    assert refused.value.kind == "watermarks_interleave"
    assert site.is_unchanged()


def test_a_stream_bound_elsewhere_or_in_progress_is_refused(site: Site, tmp_path: Path) -> None:
    append(site.home, [{**row(50), "gateway_id": None}])
    flush(site.home)
    site.table(numbered(3))
    watermark(site.cache, "team", 2)
    site.delivered_by_original(team=site.folder)
    site.delivery.delivered(key("team"), 0)
    site.delivery.planned(key("team"), 1)
    with pytest.raises(HypError, match="a delivery is in progress"):
        site.take()
    assert site.deliver() == [50]
    site.delivery.declare(team=tmp_path / "moved")
    with pytest.raises(HypError, match="hyp export adopt team"):
        site.take(same=["team"])
    assert len(site.lake()) == 1


def test_a_watermark_that_cannot_be_parsed_is_reported_and_ignored(site: Site) -> None:
    site.table(numbered(3))
    for seq in ("-4", "1e3", "true"):
        watermark(site.cache, "team", seq)
        (mark,) = site.take()["watermarks"]
        assert (mark["honoured"], mark["old"]) == (False, None)
        assert "cannot parse" in mark["why"]


def test_the_mirror_holds_the_continued_watermark(site: Site) -> None:
    site.table(numbered(6))
    watermark(site.cache, "team", 4)
    site.delivered_by_original(team=site.folder)
    site.take()
    mirrored = mirror.read_mirror(site.home.mirror)
    assert mirrored is not None
    assert mirrored.deliveries is not None
    assert [(each["sink"], each["watermark"]) for each in mirrored.deliveries["streams"]] == [("team", 4)]
    site.home.state.unlink()
    assert site.deliver() == [5, 6]


def test_a_pending_watermark_is_promoted_or_discarded_with_its_flush(site: Site) -> None:
    with closing(open_home(site.home).store) as store, store.transaction() as connection:
        for flush_id, seq in (("one", 7), ("two", 9), ("three", 5)):
            streams.add_pending_watermarks(
                connection, flush_id, [PendingWatermark(StreamKey("team", DATASET, "claude"), "file:///x", seq)]
            )
        streams.promote_watermarks(connection, "one")
        streams.discard_watermarks(connection, "two")
        streams.promote_watermarks(connection, "two")
        streams.promote_watermarks(connection, "three")
    assert site.watermark() == 7, "watermarks only advance"
