"""A full disk: a clear error, no acknowledged data is lost, and everything works again afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hypaware.daemon import lifecycle
from hypaware.errors import NotReady, Retryable
from hypaware.home import Home
from hypaware.spool import segments
from hypaware.spool.reader import read_spooled_rows
from hypaware.spool.writer import SealRule, Spool
from hypaware.state import flushes
from hypaware.state.home_opener import open_home
from hypaware.status.snapshot import collect_snapshot
from tests.support.rows import DATASET, rows
from tests.support.small_disk import SmallDisk, mounted

pytestmark = pytest.mark.hazard(13)
_NEVER = SealRule(linger=float("inf"))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with mounted(tmp_path / "disk") as small:
        yield small


@pytest.fixture
def home(disk: SmallDisk) -> Home:
    return Home(disk.root / "home")


def _spooled(home: Home) -> set[str]:
    return {row["message_id"] for row in read_spooled_rows(home, DATASET)}


def test_append_fails_clearly_on_a_full_disk_and_works_again_afterwards(home: Home, disk: SmallDisk) -> None:
    acknowledged: set[str] = set()
    with Spool(home, _NEVER) as spool:
        spool.append(DATASET, rows(1))
        disk.fill(leave=40_000)

        def append_until_it_fails() -> None:
            for number in range(1, 100_000, 10):
                spool.append(DATASET, rows(10, number))
                acknowledged.update(f"message-{each}" for each in range(number, number + 10))

        with pytest.raises(Retryable, match=r"No space left.*none was stored"):
            append_until_it_fails()
        assert acknowledged
        assert acknowledged <= _spooled(home)
        disk.make_room()
        spool.append(DATASET, rows(1, 100_000))
        spool.seal()
    assert _spooled(home) == acknowledged | {"message-0", "message-100000"}


def test_a_seal_on_a_full_disk_loses_nothing(home: Home, disk: SmallDisk) -> None:
    with Spool(home, _NEVER) as spool:
        spool.append(DATASET, rows(5))
        disk.fill()
        spool.seal()
        disk.make_room()
    folder = segments.spool_folder(home, DATASET)
    segments.repair_orphans(folder)
    assert [segment.rows for segment in segments.list_sealed_segments(folder)] == [5]


def test_a_change_of_the_state_on_a_full_disk_is_atomic(home: Home, disk: SmallDisk) -> None:
    store = open_home(home).store
    disk.fill()
    with (
        pytest.raises(Retryable, match=r"cannot write the state .*state\.db.*.*full"),
        store.transaction() as connection,
    ):
        flushes.reserve_flush(connection, DATASET, [(f"segment-{number}", 10) for number in range(200)])
    with store.reading() as connection:
        assert flushes.next_sequence(connection) == 1
        assert flushes.unfinished_flushes(connection) == []
    disk.make_room()
    with store.transaction() as connection:
        assert flushes.reserve_flush(connection, DATASET, [("segment-1", 10)]).last == 10
    store.close()


def test_a_home_is_created_once_the_disk_has_space(home: Home, disk: SmallDisk) -> None:
    disk.fill()
    with pytest.raises(Retryable, match=r"home.* could not be|cannot write the state"):
        open_home(home)
    disk.make_room()
    opened = open_home(home)
    assert opened.rebuilt is None
    opened.store.close()
    with Spool(home, _NEVER) as spool:
        spool.append(DATASET, rows(1))


def test_the_state_can_be_read_on_a_full_disk(home: Home, disk: SmallDisk) -> None:
    """SQLite cannot create its side files then. That is not damage, and nothing is rebuilt."""
    open_home(home).store.close()
    disk.fill()
    kinds = {
        each.kind
        for each in collect_snapshot(home, {"HOME": str(disk.root), "PATH": ""}, datetime.now(UTC)).diagnostics
    }
    assert "disk_full" in kinds
    assert not [kind for kind in kinds if kind.startswith("state_")]
    with pytest.raises(NotReady, match="is full"):
        lifecycle.check_can_start(home)
