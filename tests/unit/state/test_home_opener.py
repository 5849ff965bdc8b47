"""Opening a home: an unchanged home with an intact state, or a relocation or rebuild."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hypaware.errors import HypError, NotReady, Retryable, StateCorrupt
from hypaware.home import Home, durable_files
from hypaware.iceberg import metadata
from hypaware.model.row_counts import RowCounts
from hypaware.spool import reader
from hypaware.spool.writer import Spool
from hypaware.state import flushes, home_opener, mirror, store
from hypaware.state.home_opener import OpenHome, open_home, read_identity
from hypaware.state.location import has_state
from hypaware.state.sqlite_database import suspect_marker
from tests.support import iceberg_lake
from tests.support.processes import run, running, succeed, together, was_killed
from tests.support.rows import DATASET, rows

_OPEN = """
from hypaware.home import Home
from hypaware.state.home_opener import open_home
opened = open_home(Home.from_environment())
print(opened.identity.gateway_id, opened.identity.incarnation)
"""


def _next_seq(home: Home) -> int:
    opened = open_home(home)
    try:
        with opened.store.reading() as connection:
            return flushes.next_sequence(connection)
    finally:
        opened.store.close()


def _open(home: Home) -> OpenHome:
    """Open and close the home, and return the message for the user."""
    opened = open_home(home)
    opened.store.close()
    return opened


def _open_concurrently(home: Home) -> set[str]:
    """Open the home in several processes at once and return the incarnations."""

    def meet(number: int) -> None:
        home.root.with_name(f"met-{number}").write_text(_open(home).identity.incarnation)

    assert together([partial(meet, number) for number in range(6)]) == [0] * 6
    return {path.read_text() for path in home.root.parent.glob("met-*")}


def _flushed(home: Home, rows_written: int) -> None:
    """Record a flush of this many rows in the state."""
    opened = open_home(home)
    with opened.store.transaction() as connection:
        flush = flushes.reserve_flush(connection, DATASET, [(f"segment-{rows_written}", rows_written)])
        flushes.record_flush(connection, flush, flushes.FlushOutcome({"claude": flush.last}, RowCounts(rows_written)))
    mirror.write_mirror(home.mirror, opened.store)
    opened.store.close()


def _forget(*paths: Path) -> None:
    for path in paths:
        for found in path.parent.glob(f"{path.name}*"):
            found.unlink()


def _everything(root: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(root)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in (root, *root.rglob("*"))
    }


def test_a_new_home_is_created_without_a_message(home: Home) -> None:
    opened = _open(home)
    assert opened.rebuilt is None
    assert opened.gateway_id.startswith("gw-")
    assert opened.identity.parents == ()
    assert _open(home).identity == opened.identity
    assert read_identity(home) == opened.identity
    assert _next_seq(home) == 1


def test_all_files_of_a_home_are_private_to_their_owner(home: Home) -> None:
    before = os.umask(0o022)
    try:
        opened = open_home(home)
    finally:
        os.umask(before)
    with opened.store.transaction() as connection:
        flushes.raise_next_sequence(connection, 2)
    modes = {path.name: path.stat().st_mode & 0o777 for path in home.root.rglob("*") if path.is_file()}
    assert "state.db-wal" in modes
    assert set(modes.values()) == {0o600}
    assert home.root.stat().st_mode & 0o777 == 0o700
    opened.store.close()


def test_an_empty_folder_becomes_private_and_one_with_other_files_is_unchanged(tmp_path: Path) -> None:
    made, shared = Home(tmp_path / "made"), Home(tmp_path / "shared")
    for home in (made, shared):
        home.root.mkdir()
        home.root.chmod(0o755)
        home.config.touch()
    (shared.root / "letters").mkdir()
    for home in (made, shared):
        _open(home)
    assert [home.root.stat().st_mode & 0o777 for home in (made, shared)] == [0o700, 0o755]


def test_concurrent_processes_create_one_home(home: Home) -> None:
    assert _open_concurrently(home) == {_open(home).identity.incarnation}


@pytest.mark.parametrize(
    "crash_at",
    [
        "state.commit.before-commit:1",
        "state.commit.after-commit:1",
        "state.commit.before-commit:2",
        "state.commit.after-commit:2",
        "state.mirror.before-write",
        "state.mirror.after-write",
    ],
)
def test_a_home_whose_creation_was_killed_is_completed_by_the_next_process(home: Home, crash_at: str) -> None:
    done = run(_OPEN, home, crash_at=crash_at)
    assert was_killed(done), done.stderr
    opened = _open(home)
    assert opened.rebuilt is None
    assert read_identity(home) == opened.identity
    held = mirror.read_mirror(home.mirror)
    assert held
    assert held.identity == opened.identity


def test_a_missing_mirror_is_written_again(home: Home) -> None:
    _flushed(home, 10)
    home.mirror.unlink()
    opened = _open(home)
    held = mirror.read_mirror(home.mirror)
    assert held
    assert (held.identity, held.next_seq, opened.rebuilt) == (opened.identity, 11, None)


@pytest.mark.hazard(70)
@pytest.mark.parametrize("use", [_open, read_identity, Spool])
def test_a_moved_home_is_the_same_home(home: Home, use: Callable[[Home], object]) -> None:
    _flushed(home, 10)
    with Spool(home) as spool:
        spool.append(DATASET, rows(2))
    known = _open(home).identity
    moved = Home(home.root.with_name("moved"))
    home.root.rename(moved.root)
    use(moved)
    assert _open(moved).identity == dataclasses.replace(known, home_path=str(moved.root))
    assert _next_seq(moved) == 11
    assert reader.summarize_spool(moved, DATASET).rows == 2
    assert not home.root.exists()
    before = _everything(moved.root)
    assert read_identity(moved).home_path == str(moved.root)
    assert _everything(moved.root) == before


@pytest.mark.hazard(69)
@pytest.mark.parametrize("use", [_open, read_identity, Spool])
def test_a_copied_home_gets_its_own_incarnation_and_leaves_the_original_unchanged(
    home: Home, use: Callable[[Home], object]
) -> None:
    _flushed(home, 10)
    known = _open(home).identity
    copy = Home(home.root.with_name("copy"))
    shutil.copytree(home.root, copy.root)
    before = _everything(home.root)
    use(copy)
    identity = _open(copy).identity
    assert (identity.gateway_id, identity.parents, identity.forks) == (known.gateway_id, (known.incarnation,), (10,))
    assert identity.incarnation != known.incarnation
    assert _next_seq(copy) == 11 + home_opener.SKIPPED_SEQUENCES
    assert read_identity(copy) == identity
    assert _everything(home.root) == before


@pytest.mark.hazard(69)
def test_a_copy_without_its_mirror_is_detected_from_its_state(home: Home) -> None:
    _flushed(home, 10)
    known = _open(home).identity
    copy = Home(home.root.with_name("copy"))
    shutil.copytree(home.root, copy.root)
    copy.mirror.unlink()
    opened = _open(copy)
    assert opened.identity.parents == (known.incarnation,)
    assert opened.rebuilt == f"this home is a copy of {home.root} and is independent of it from now on"
    held = mirror.read_mirror(copy.mirror)
    assert held
    assert (held.identity, held.next_seq) == (opened.identity, 11 + home_opener.SKIPPED_SEQUENCES)


@pytest.mark.hazard(69)
@pytest.mark.parametrize("damage", ["allocator", "mark", "garbage"])
def test_a_copy_with_a_damaged_state_is_relocated_as_a_copy(home: Home, damage: str) -> None:
    _flushed(home, 10)
    known = _open(home).identity
    copy = Home(home.root.with_name("copy"))
    shutil.copytree(home.root, copy.root)
    if damage == "allocator":
        with closing(sqlite3.connect(copy.state, isolation_level=None)) as state:
            state.execute("DELETE FROM allocator")
    elif damage == "mark":
        suspect_marker(copy.state).touch()
    else:
        copy.state.write_bytes(b"\xff" * 10_000)
    opened = _open(copy)
    assert opened.rebuilt
    assert opened.identity.home_path == str(copy.root)
    assert known.incarnation in opened.identity.parents
    assert opened.identity.forks[-1] == 10
    assert _next_seq(copy) == 11 + home_opener.SKIPPED_SEQUENCES


@pytest.mark.parametrize("how", ["moved", "copied"])
def test_a_home_moved_to_a_network_file_system_is_rejected(
    home: Home, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    _flushed(home, 10)
    there = Home(home.root.with_name("there"))
    home.root.rename(there.root) if how == "moved" else shutil.copytree(home.root, there.root)
    monkeypatch.setattr(durable_files, "file_system_type", lambda _: "nfs4")
    with pytest.raises(NotReady, match="network file system"):
        open_home(there)
    held = mirror.read_mirror(there.mirror)
    assert held
    assert held.identity.home_path == str(home.root)


@pytest.mark.hazard(15)
@pytest.mark.parametrize("damage", ["lost", "empty", "garbage", "truncated", "allocator"])
def test_a_damaged_state_is_rebuilt_above_every_sequence_of_the_mirror(home: Home, damage: str) -> None:
    _flushed(home, 500)
    before = _open(home).identity
    if damage == "lost":
        _forget(home.state)
    elif damage == "empty":
        _forget(home.state)
        home.state.touch()
    elif damage == "garbage":
        home.state.write_bytes(b"\xff" * 10_000)
    elif damage == "truncated":
        os.truncate(home.state, 5_000)
    else:
        with closing(sqlite3.connect(home.state, isolation_level=None)) as state:
            state.execute("DELETE FROM allocator")
    opened = open_home(home)
    with opened.store.reading() as connection:
        assert flushes.next_sequence(connection) == 501
        assert flushes.load_high_water(connection) == {DATASET: {"claude": 500}}
    opened.store.close()
    assert opened.rebuilt
    assert "has been rebuilt" in opened.rebuilt
    assert opened.gateway_id == before.gateway_id
    assert opened.identity.parents == (before.incarnation,)
    assert _open(home).identity == opened.identity


@pytest.mark.hazard(15)
def test_a_damaged_state_is_quarantined_and_kept(home: Home) -> None:
    _flushed(home, 5)
    home.state.write_bytes(b"\xff" * 10_000)
    _open(home)
    (aside,) = home.root.glob("state.db.damaged-*")
    assert aside.read_bytes() == b"\xff" * 10_000


@pytest.mark.hazard(15)
def test_damage_found_during_a_flush_is_repaired_by_the_next_open(home: Home) -> None:
    """The pages that are read on opening are intact. Without the marker, every flush would fail forever."""
    opened = open_home(home)
    with opened.store.transaction() as connection:
        for number in range(400):
            flush = flushes.reserve_flush(connection, DATASET, [(f"segment-{number}", 1)])
            flushes.record_flush(connection, flush, flushes.FlushOutcome({}, RowCounts(1)))
        root_page = connection.value("SELECT rootpage FROM sqlite_master WHERE name = 'flushes'")
        page_size = connection.value("PRAGMA page_size")
    mirror.write_mirror(home.mirror, opened.store)
    opened.store.close()
    with open(home.state, "r+b") as file:
        file.seek((root_page - 1) * page_size)
        file.write(b"\xff" * page_size)
    opened = open_home(home)
    assert opened.rebuilt is None
    with pytest.raises(StateCorrupt), opened.store.transaction() as connection:
        flushes.reserve_flush(connection, DATASET, [("next", 1)])
    opened.store.close()
    assert suspect_marker(home.state).exists()
    opened = open_home(home)
    assert opened.rebuilt == "the state was damaged and has been rebuilt"
    with opened.store.transaction() as connection:
        assert flushes.reserve_flush(connection, DATASET, [("next", 1)]).after == 400
    opened.store.close()
    assert not suspect_marker(home.state).exists()


def test_a_suspect_marker_on_an_intact_state_changes_nothing(home: Home) -> None:
    before = _open(home)
    suspect_marker(home.state).touch()
    assert _open(home).identity == before.identity
    assert not suspect_marker(home.state).exists()


@pytest.mark.hazard(73)
def test_a_state_older_than_its_mirror_is_caught_up_as_a_new_incarnation(home: Home) -> None:
    _flushed(home, 10)
    shutil.copy(home.state, home.root.with_name("backup"))
    _flushed(home, 90)
    before = _open(home).identity
    _forget(home.state)
    shutil.copy(home.root.with_name("backup"), home.state)
    opened = open_home(home)
    with opened.store.transaction() as connection:
        assert flushes.reserve_flush(connection, DATASET, [("next", 1)]).after == 100
        assert flushes.load_high_water(connection) == {DATASET: {"claude": 100}}
    opened.store.close()
    assert opened.rebuilt
    assert "restored from an earlier copy" in opened.rebuilt
    assert opened.identity.parents == (before.incarnation,)
    assert _open(home).rebuilt is None


@pytest.mark.hazard(73)
def test_concurrent_processes_catch_a_stale_state_up_once(home: Home) -> None:
    _flushed(home, 10)
    shutil.copy(home.state, home.root.with_name("backup"))
    _flushed(home, 90)
    shutil.copy(home.root.with_name("backup"), home.state)
    told, opened = _open_concurrently(home), _open(home)
    assert told == {opened.identity.incarnation}
    assert len(opened.identity.parents) == 1


@pytest.mark.hazard(74)
@pytest.mark.parametrize("mirror_too", [True, False])
def test_the_floor_of_an_empty_lake_applies_when_the_state_is_lost(home: Home, mirror_too: bool) -> None:
    before = _open(home).identity
    iceberg_lake.create_table(
        home,
        DATASET,
        5_000,
        **{metadata.GATEWAY_ID_PROPERTY: before.gateway_id, metadata.INCARNATION_PROPERTY: before.incarnation},
    )
    _forget(home.state, *([home.mirror] if mirror_too else []))
    opened = open_home(home)
    with opened.store.transaction() as connection:
        assert flushes.reserve_flush(connection, DATASET, [("next", 1)]).after == 5_000
    opened.store.close()
    assert opened.rebuilt == "the state was lost and has been rebuilt"
    assert opened.gateway_id == before.gateway_id
    assert opened.identity.parents == (before.incarnation,)


@pytest.mark.hazard(15)
@pytest.mark.hazard(73)
def test_a_lost_state_is_rebuilt_above_every_row_of_the_lake(home: Home) -> None:
    """This includes tables without a floor. Segments that the lake contains are not flushed again."""
    _open(home)
    iceberg_lake.append(iceberg_lake.create_table(home, "other"), {"codex": [7]})
    table = iceberg_lake.create_table(home, DATASET, 20)
    iceberg_lake.append(table, {"claude": [1, 2, 30], "a/b": [4]}, segments="segment-1,segment-2")
    iceberg_lake.append(table, {"claude": [25]}, segments="segment-2,segment-3")
    _forget(home.state, home.mirror)
    opened = open_home(home)
    with opened.store.transaction() as connection:
        assert flushes.load_high_water(connection) == {DATASET: {"claude": 30, "a/b": 4}, "other": {"codex": 7}}
        names = [f"segment-{number}" for number in range(1, 5)]
        assert flushes.committed_segments(connection, DATASET, names) == set(names[:3])
        assert flushes.reserve_flush(connection, DATASET, [("segment-4", 1)]).after == 30
    opened.store.close()


@pytest.mark.hazard(73)
@pytest.mark.hazard(74)
def test_a_state_and_mirror_older_than_the_lake_are_raised_to_its_floor(home: Home) -> None:
    _flushed(home, 10)
    iceberg_lake.create_table(home, DATASET, 5_000)
    opened = open_home(home)
    raised = home_opener.catch_up(home, opened.store, "the state was older than the lake")
    assert raised.rebuilt == "the state was older than the lake"
    with opened.store.transaction() as connection:
        assert flushes.reserve_flush(connection, DATASET, [("next", 1)]).after == 5_000
        assert store.load_identity(connection) == raised.identity
    again = home_opener.catch_up(home, opened.store, "twice")
    assert (again.rebuilt, again.identity) == (None, raised.identity)
    opened.store.close()
    held = mirror.read_mirror(home.mirror)
    assert held
    assert (held.next_seq, held.identity) == (5_001, raised.identity)


def test_a_state_of_a_newer_version_is_not_changed(home: Home) -> None:
    opened = open_home(home)
    with opened.store.transaction() as connection:
        connection.execute("INSERT INTO migrations VALUES ('9999_future', 'now')")
    opened.store.close()
    held = home.state.read_bytes()
    with pytest.raises(HypError, match="newer version"):
        open_home(home)
    assert home.state.read_bytes() == held


@pytest.mark.parametrize("made_before", [True, False])
def test_a_network_file_system_is_rejected_before_any_file_is_created(
    home: Home, monkeypatch: pytest.MonkeyPatch, made_before: bool
) -> None:
    monkeypatch.setattr(durable_files, "file_system_type", lambda _: "nfs4")
    if made_before:
        home.root.mkdir()
    with pytest.raises(NotReady, match=r"network file system \(nfs4\)") as refused:
        open_home(home)
    assert refused.value.exit_code == 3
    assert list(home.root.parent.rglob("home/*")) == []
    assert home.root.exists() == made_before


def test_a_home_that_cannot_be_opened_is_a_clear_error(home: Home) -> None:
    home.root.parent.joinpath("home").write_text("a file where the home should be")
    with pytest.raises(Retryable, match=r"home.* could not be opened"):
        open_home(home)


@pytest.mark.parametrize("use", [open_home, read_identity, Spool])
def test_a_home_that_is_removed_while_a_process_opens_it_is_not_made_again(
    home: Home, monkeypatch: pytest.MonkeyPatch, use: Callable[..., object]
) -> None:
    _open(home)
    home.mirror.unlink()

    def look_and_remove(look: Callable[[Any], object], place: Home | Path) -> object:
        found = look(place)
        shutil.rmtree(home.root, ignore_errors=True)
        return found

    monkeypatch.setattr(home_opener, "has_state", partial(look_and_remove, has_state))
    monkeypatch.setattr(home_opener, "read_mirror", partial(look_and_remove, mirror.read_mirror))
    with pytest.raises(NotReady) as told:
        use(home, make=False)
    assert told.value.kind == "home_gone"
    assert not home.root.exists()


def test_a_failed_open_closes_its_files(home: Home) -> None:
    _flushed(home, 1)
    moved = Home(home.root.with_name("moved"))
    home.root.rename(moved.root)
    moved.mirror.unlink()
    code = """
import psutil
from hypaware.home import Home, durable_files
from hypaware.state import home_opener
from hypaware.errors import NotReady

durable_files.file_system_type = lambda path: "nfs4"
try:
    home_opener.open_home(Home.from_environment())
except NotReady:
    print([file.path for file in psutil.Process().open_files()])
"""
    assert succeed(code, moved) == "[]\n"


def test_a_producer_does_not_wait_for_a_writer_of_the_state(home: Home) -> None:
    _open(home)
    holding = """
import sys
from hypaware.home import Home
from hypaware.state.home_opener import open_home
with open_home(Home.from_environment()).store.transaction():
    print("held", flush=True)
    sys.stdin.readline()
"""
    with running(holding, home) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        with Spool(home) as spool:
            assert spool.append(DATASET, rows(1)) == 1
        assert process.poll() is None


def test_a_home_that_lost_state_and_mirror_keeps_its_gateway_id(home: Home) -> None:
    """Rows in the spool carry the gateway id and would be foreign under another one."""
    before = open_home(home)
    before.store.close()
    for path in (home.mirror, *home.root.glob("state.db*")):
        path.unlink()
    after = open_home(home)
    after.store.close()
    assert after.gateway_id == before.gateway_id
    assert after.identity.incarnation != before.identity.incarnation
