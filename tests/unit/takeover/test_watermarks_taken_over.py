"""What the original delivered is not delivered again, where that can be known; all the rest is."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hypaware.errors import HypError, UsageError
from hypaware.home import Home
from hypaware.model.datasets import SEQ
from hypaware.opening import open_home
from hypaware.state import mirror, streams, takeovers
from hypaware.state.stream_key import StreamKey
from hypaware.state.takeovers import Raised
from tests.light_lake import read_lake
from tests.light_life import append, flush
from tests.standing_home import StandingHome, key
from tests.unit.takeover.light_takeover import arrived, deliver, taken
from tests.unit.takeover.original_cache import DATASET, Builder, config_of, installation, row, spool, watermark


class Site:
    """A home with a sink `team` that delivers into a folder, and an installation of the original."""

    def __init__(self, tmp_path: Path) -> None:
        self.home = Home(tmp_path / "home")
        self.folder = tmp_path / "delivered"
        self.cache = tmp_path / "old" / "hypaware" / "cache"
        self.standing = StandingHome(self.home)
        self.standing.declare(team=self.folder)

    def table(self, *files: list[tuple[int, int | None]], partition: str = "source=claude") -> Builder:
        """Of each file, (number of the row, old sequence)."""
        builder = Builder(self.cache, partition)
        for file in files:
            builder.add([row(number) for number, _ in file], [seq for _, seq in file])
        return builder.commit()

    def delivered_there(self, **sinks: Path) -> None:
        config_of(self.cache, **{name: {"dir": str(folder)} for name, folder in sinks.items()})

    def take(self, **args: Any) -> dict[str, Any]:
        return taken(self.home, self.cache, **args)

    def deliver(self) -> list[int]:
        """The numbers of the rows that have arrived in all."""
        assert deliver(self.home, "team") == "ok"
        return sorted(int(part.removeprefix("old-").removesuffix("#0")) for part in arrived(self.folder))

    def watermark(self) -> int | None:
        with closing(open_home(self.home).store) as store, store.reading() as connection:
            found = streams.load(connection, key("team"))
        return found.watermark if found else None

    def lake(self) -> list[dict[str, Any]]:
        return read_lake(self.home, DATASET)

    def untouched(self) -> bool:
        return self.lake() == [] and self.watermark() is None


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def numbered(count: int, first: int = 1) -> list[tuple[int, int | None]]:
    return [(number, number) for number in range(first, first + count)]


def test_of_the_sample_only_what_lies_above_the_watermark_is_delivered(site: Site) -> None:
    installation(site.cache.parents[1])
    watermark(site.cache, "team", 1000)
    site.delivered_there(team=site.folder)
    report = site.take()
    (told,) = report["watermarks"]
    assert (told["old"], told["new"], told["honoured"], told["to"]) == (1000, 1000, True, "team")
    assert deliver(site.home, "team") == "ok"
    parts = arrived(site.folder)
    assert len(parts) == len(set(parts)) == 481
    delivered = {each["part_id"] for each in site.lake() if each[SEQ] > 1000}
    assert set(parts) == delivered


@pytest.mark.hazard(23)
def test_rows_without_a_sequence_went_with_the_first_delivery(site: Site) -> None:
    site.table([(1, None), (2, None), (5, 5), (6, 6)], [(3, 3), (7, 7)])
    spool(site.cache, [row(8)])
    watermark(site.cache, "team", 5)
    site.delivered_there(team=site.folder)
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
def test_partitions_of_the_older_layout_have_watermarks_of_their_own(site: Site) -> None:
    for day, rows in (("2026-09-01", [(1, None), (2, None)]), ("2026-09-02", [(3, None)])):
        builder = Builder(site.cache, f"client=claude/date={day}", "epoch=0")
        builder.add([row(number) for number, _ in rows], None)
        builder.commit({"epoch": 0, "rowCount": len(rows)})
    site.table([(4, 4), (5, 5)])
    watermark(site.cache, "team", 0, partition="client=claude/date=2026-09-01")
    watermark(site.cache, "team", 0, partition="client=claude/date=2026-08-31")
    site.delivered_there(team=site.folder)
    report = site.take()
    assert {each["partition"]: each["why"] for each in report["watermarks"] if not each["honoured"]} == {
        "client=claude/date=2026-08-31": "its partition is not in the cache"
    }
    assert site.deliver() == [3, 4, 5]


def test_a_destination_that_nothing_names_is_asked_for_and_nothing_is_changed(site: Site) -> None:
    site.table(numbered(6))
    watermark(site.cache, "team", 4)
    with pytest.raises(HypError, match=r"--same-destination team.*--other-destination team") as refused:
        site.take()
    assert refused.value.kind == "destination_unclear"
    assert site.untouched()
    site.take(same=["team"])
    assert site.deliver() == [5, 6]


def test_another_destination_gets_everything_once_the_user_has_said_so(site: Site) -> None:
    site.table(numbered(6))
    watermark(site.cache, "team", 4)
    site.delivered_there(team=site.folder.with_name("another"))
    with pytest.raises(HypError, match=r"delivered to file://.*another"):
        site.take()
    (told,) = site.take(other=["team"])["watermarks"]
    assert (told["honoured"], told["new"]) == (False, None)
    assert site.deliver() == [1, 2, 3, 4, 5, 6]


def test_a_sink_that_is_called_otherwise_here_goes_on(site: Site) -> None:
    site.table(numbered(6))
    watermark(site.cache, "central", 4)
    (told,) = site.take()["watermarks"]
    assert "no sink central; if it goes on here, add --sink central=NAME" in told["why"]
    again = site.take(sinks={"central": "team"}, same=["team"])
    assert [each["new"] for each in again["watermarks"]] == [4]
    assert site.deliver() == [5, 6]


def test_what_is_said_of_a_sink_that_is_not_there_is_wrong_usage(site: Site) -> None:
    site.table(numbered(2))
    for args in ({"same": ["tema"]}, {"sinks": {"central": "nobody"}}, {"same": ["team"], "other": ["team"]}):
        with pytest.raises(UsageError):
            site.take(**args)
    assert site.untouched()


def test_rows_that_wait_to_be_delivered_here_are_never_taken_as_delivered(site: Site) -> None:
    append(site.home, [{**row(50), "gateway_id": None}])
    flush(site.home)
    site.table(numbered(6))
    watermark(site.cache, "team", 4)
    site.delivered_there(team=site.folder)
    with pytest.raises(HypError, match=r"1 rows that were not delivered.*Do this first: hyp export team") as refused:
        site.take()
    assert refused.value.kind == "stream_not_ready"
    assert len(site.lake()) == 1
    assert site.deliver() == [50]
    site.take()
    assert site.deliver() == [5, 6, 50]


def test_rows_that_this_home_has_already_and_the_original_delivered_are_not_sent(site: Site) -> None:
    """Imported here from the same transcripts, before the cache was taken over."""
    append(site.home, [{**row(number), "gateway_id": None} for number in (1, 3)])
    flush(site.home)
    site.table(numbered(6))
    watermark(site.cache, "team", 4)
    site.delivered_there(team=site.folder)
    site.take()
    assert site.deliver() == [5, 6]


def test_a_watermark_that_has_risen_since_counts_at_the_next_run(site: Site) -> None:
    builder = site.table(numbered(6))
    watermark(site.cache, "team", 2)
    site.delivered_there(team=site.folder)
    site.take()
    assert site.watermark() == 2
    watermark(site.cache, "team", 4)
    (told,) = site.take()["watermarks"]
    assert told["new"] == site.watermark() == 4
    # The original went on: new rows, and more of them delivered, also of those that are here.
    builder.add([row(7), row(8)], [7, 8])
    builder.commit()
    watermark(site.cache, "team", 7)
    (told,) = site.take()["watermarks"]
    assert told["new"] == site.watermark()
    assert site.deliver() == [8]
    assert site.take()["datasets"][0]["flush_id"] is None


def test_the_newest_row_may_have_been_refused(site: Site) -> None:
    """A stream that stood above its newest row could never go on."""
    builder = Builder(site.cache)
    builder.add([row(1), row(2), row(3, part_id="wrong")], [1, 2, 3])
    builder.commit()
    watermark(site.cache, "team", 3)
    site.delivered_there(team=site.folder)
    site.take()
    assert site.watermark() == 2
    assert site.deliver() == []
    append(site.home, [{**row(9), "gateway_id": None}])
    flush(site.home)
    assert site.deliver() == [9]


def test_of_two_sinks_each_has_a_watermark_of_its_own(site: Site) -> None:
    second = site.folder.with_name("second")
    site.standing.declare(team=site.folder, second=second)
    site.table(numbered(6))
    watermark(site.cache, "team", 4)
    watermark(site.cache, "second", 1)
    site.delivered_there(team=site.folder, second=second)
    site.take()
    assert site.deliver() == [5, 6]
    assert deliver(site.home, "second") == "ok"
    assert Counter(arrived(second)) == Counter(f"old-{number}#0" for number in (2, 3, 4, 5, 6))


def test_delivered_rows_among_others_are_not_guessed_at(site: Site) -> None:
    """Two partitions of one source, of which only one has a watermark, with sequences in between each other."""
    site.table([(1, 1), (3, 3)])
    site.table([(2, 2), (4, 4)], partition="client=claude/date=2026-09-01")
    watermark(site.cache, "team", 3)
    site.delivered_there(team=site.folder)
    with pytest.raises(HypError, match="others that lie before them not") as refused:
        site.take()
    assert refused.value.kind == "watermarks_interleave"
    assert site.untouched()


def test_a_stream_that_was_bound_elsewhere_or_is_under_way_is_left_alone(site: Site, tmp_path: Path) -> None:
    append(site.home, [{**row(50), "gateway_id": None}])
    flush(site.home)
    site.table(numbered(3))
    watermark(site.cache, "team", 2)
    site.delivered_there(team=site.folder)
    site.standing.delivered(key("team"), 0)
    site.standing.planned(key("team"), 1)
    with pytest.raises(HypError, match="a delivery of it is under way"):
        site.take()
    assert site.deliver() == [50]
    site.standing.declare(team=tmp_path / "moved")
    with pytest.raises(HypError, match="hyp export adopt team"):
        site.take(same=["team"])
    assert len(site.lake()) == 1


def test_a_watermark_that_cannot_be_understood_is_told_of_and_not_honoured(site: Site) -> None:
    site.table(numbered(3))
    for seq in ("-4", "1e3", "true"):
        watermark(site.cache, "team", seq)
        (told,) = site.take()["watermarks"]
        assert (told["honoured"], told["old"]) == (False, None)
        assert "cannot be understood" in told["why"]


def test_the_side_file_knows_how_far_the_original_delivered(site: Site) -> None:
    site.table(numbered(6))
    watermark(site.cache, "team", 4)
    site.delivered_there(team=site.folder)
    site.take()
    held = mirror.read(site.home.mirror)
    assert held is not None
    assert held.deliveries is not None
    assert [(each["sink"], each["watermark"]) for each in held.deliveries["streams"]] == [("team", 4)]
    site.home.state.unlink()
    assert site.deliver() == [5, 6]


def test_a_pending_watermark_counts_with_its_flush_and_goes_without_it(site: Site) -> None:
    with closing(open_home(site.home).store) as store, store.transaction() as connection:
        for flush_id, seq in (("one", 7), ("two", 9), ("three", 5)):
            takeovers.pend(connection, flush_id, [Raised(StreamKey("team", DATASET, "claude"), "file:///x", seq)])
        takeovers.promote(connection, "one")
        takeovers.discard(connection, "two")
        takeovers.promote(connection, "two")
        takeovers.promote(connection, "three")
    assert site.watermark() == 7, "they only rise"
