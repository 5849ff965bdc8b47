"""The state in SQLite: its durability, its damage and its files."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from hypaware.errors import Retryable, StateCorrupt, StateError
from hypaware.state.sqlite_database import SqliteDatabase, is_intact, suspect_marker
from hypaware.state.store import StateStore


def _put(store: StateStore, key: str) -> None:
    with store.transaction() as connection:
        connection.insert("meta", {"key": key, "value": ""})


def _keys(store: StateStore) -> list[str]:
    with store.reading() as connection:
        return sorted(connection.values("SELECT key FROM meta"))


@pytest.mark.hazard(10)
def test_every_connection_uses_wal_and_full_synchronization(sqlite_store: StateStore, state_file: Path) -> None:
    with sqlite_store.reading() as connection:
        found = [connection.value(f"PRAGMA {name}") for name in ("journal_mode", "synchronous")]
    assert found == ["wal", 2]


def test_a_state_that_stays_locked_is_a_retryable_error(sqlite_store: StateStore, state_file: Path) -> None:
    impatient = StateStore(SqliteDatabase(state_file, busy_milliseconds=10))
    with sqlite_store.transaction(), pytest.raises(Retryable, match="locked") as told:
        _put(impatient, "a")
    assert told.value.kind == "state_unavailable"
    _put(impatient, "a")
    impatient.close()


def test_a_violated_constraint_is_not_damage(sqlite_store: StateStore, state_file: Path) -> None:
    _put(sqlite_store, "a")
    with pytest.raises(StateError, match=r"a change of the state .* failed.*UNIQUE"):
        _put(sqlite_store, "a")
    assert not suspect_marker(state_file).exists()


@pytest.mark.hazard(15)
@pytest.mark.parametrize("held", [b"not a database at all" * 100, b"SQLite format 3\0" + bytes(4080), b"\xff" * 8192])
def test_a_file_that_is_not_a_database_is_reported_as_corrupt(tmp_path: Path, held: bytes) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(held)
    assert not is_intact(path)
    store = StateStore(path)
    with pytest.raises(StateCorrupt, match="damaged"):
        store.migrate()
    store.close()
    assert suspect_marker(path).exists()


def test_a_read_only_store_leaves_no_marker_and_cannot_be_changed(
    tmp_path: Path, sqlite_store: StateStore, state_file: Path
) -> None:
    _put(sqlite_store, "a")
    read_only = StateStore(state_file, read_only=True)
    assert _keys(read_only) == ["a"]
    with pytest.raises(AssertionError, match="read-only"), read_only.transaction():
        pass
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"SQLite format 3\0" + bytes(4080))
    with (
        pytest.raises((StateError, sqlite3.DatabaseError)),
        StateStore(damaged, read_only=True).reading() as connection,
    ):
        connection.values("SELECT key FROM meta")
    assert not suspect_marker(damaged).exists()


@pytest.mark.hazard(15)
def test_damage_in_the_middle_of_the_file_is_detected(sqlite_store: StateStore, state_file: Path) -> None:
    for number in range(300):
        _put(sqlite_store, f"{number:04d}" + "x" * 200)
    sqlite_store.close()
    assert is_intact(state_file)
    spoil(state_file)
    assert not is_intact(state_file)


def spoil(path: Path) -> None:
    """Overwrite the middle of the file. The first page still looks like a database."""
    size = path.stat().st_size
    assert size > 20_000
    with open(path, "r+b") as file:
        file.seek(8192)
        file.write(os.urandom(size - 8192))


def test_an_empty_file_is_new_and_intact(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.touch()
    assert is_intact(path)


def test_a_state_that_cannot_be_checked_is_a_retryable_error(tmp_path: Path) -> None:
    (tmp_path / "state.db").mkdir()
    with pytest.raises(Retryable, match="cannot check the state"):
        is_intact(tmp_path / "state.db")


def test_a_closed_store_leaves_no_side_files(sqlite_store: StateStore, state_file: Path) -> None:
    _put(sqlite_store, "a")
    sqlite_store.close()
    assert [path.name for path in state_file.parent.iterdir() if path.name.startswith("state.db-")] == []
