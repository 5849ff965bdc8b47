"""The store: a transaction is durable when it returns, or has no effect."""

from __future__ import annotations

import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hypaware.errors import Retryable, StateCorrupt, StateError
from hypaware.home import Home
from hypaware.state import store as state_store
from hypaware.state.store import StateStore, is_intact, suspect_marker
from tests.support.processes import fork, run, was_killed

_WRITE = """
import pathlib, sys
from hypaware.state.store import StateStore
store = StateStore(pathlib.Path(sys.argv[1]))
with store.transaction() as connection:
    connection.insert("meta", {"key": "k", "value": "v"})
print("committed", flush=True)
"""


def _put(store: StateStore, key: str) -> None:
    with store.transaction() as connection:
        connection.insert("meta", {"key": key, "value": ""})


def _driver_connection(store: StateStore) -> int:
    with store.reading() as connection:
        return id(connection.driver)


def _keys(store: StateStore) -> list[str]:
    with store.reading() as connection:
        return sorted(connection.values("SELECT key FROM meta"))


def test_a_transaction_is_atomic(store: StateStore) -> None:
    def fail_half_way() -> None:
        with store.transaction() as connection:
            connection.insert("meta", {"key": "a", "value": ""})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_half_way()
    assert _keys(store) == []
    _put(store, "b")
    assert _keys(store) == ["b"]


@pytest.mark.hazard(10)
def test_every_connection_uses_wal_and_full_synchronization(store: StateStore) -> None:
    with store.reading() as connection:
        found = [connection.value(f"PRAGMA {name}") for name in ("journal_mode", "synchronous")]
    assert found == ["wal", 2]


@pytest.mark.parametrize(("point", "keys"), [("state.commit.before-commit", []), ("state.commit.after-commit", ["k"])])
def test_a_process_killed_around_a_commit_leaves_it_complete_or_undone(
    store: StateStore, home: Home, point: str, keys: list[str]
) -> None:
    done = run(_WRITE, home, store.path, crash_at=point)
    assert was_killed(done), done.stderr
    assert done.stdout == ""
    assert _keys(store) == keys


def test_reads_of_a_transaction_are_still_valid_when_it_writes(store: StateStore) -> None:
    """Otherwise two transactions that read and then write would use the same number."""
    with store.transaction() as connection:
        connection.insert("meta", {"key": "n", "value": "0"})

    def count(_: int) -> None:
        with store.transaction() as connection:
            n = int(connection.value("SELECT value FROM meta"))
            connection.execute("UPDATE meta SET value = ?", (str(n + 1),))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, range(40)))
    with store.reading() as connection:
        assert connection.value("SELECT value FROM meta") == "40"


def test_a_reader_does_not_wait_for_a_writer_or_see_uncommitted_rows(store: StateStore) -> None:
    written, finish = threading.Event(), threading.Event()

    def write() -> None:
        with store.transaction() as connection:
            connection.insert("meta", {"key": "a", "value": ""})
            written.set()
            finish.wait()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        written.wait()
        assert _keys(store) == []
        finish.set()
        writing.result()
    assert _keys(store) == ["a"]


def test_a_state_that_stays_locked_is_a_retryable_error(
    store: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_store, "_BUSY_MILLISECONDS", 10)
    impatient = StateStore(store.path)
    with store.transaction(), pytest.raises(Retryable, match="locked") as told:
        _put(impatient, "a")
    assert told.value.kind == "state_unavailable"
    _put(impatient, "a")
    impatient.close()


def test_a_violated_constraint_is_not_damage(store: StateStore) -> None:
    _put(store, "a")
    with pytest.raises(StateError, match=r"a change of the state .* failed.*UNIQUE"):
        _put(store, "a")
    assert not suspect_marker(store.path).exists()


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


def test_a_read_only_store_leaves_no_marker_and_cannot_be_changed(tmp_path: Path, store: StateStore) -> None:
    _put(store, "a")
    read_only = StateStore(store.path, read_only=True)
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
def test_damage_in_the_middle_of_the_file_is_detected(store: StateStore) -> None:
    for number in range(300):
        _put(store, f"{number:04d}" + "x" * 200)
    store.close()
    assert is_intact(store.path)
    spoil(store.path)
    assert not is_intact(store.path)


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


def test_a_closed_store_leaves_no_side_files(store: StateStore) -> None:
    _put(store, "a")
    store.close()
    assert [path.name for path in store.path.parent.iterdir() if path.name.startswith("state.db-")] == []


@pytest.mark.hazard(79)
def test_a_forked_child_opens_its_own_connections(store: StateStore) -> None:
    """SQLite's locks belong to a process. A connection that is used by two of them corrupts the file."""
    _put(store, "before")
    inherited = _driver_connection(store)

    def child(number: int) -> None:
        assert _driver_connection(store) != inherited
        for turn in range(10):
            _put(store, f"{number}-{turn}")

    assert [fork(lambda: child(1)), fork(lambda: child(2))] == [0, 0]
    _put(store, "after")
    assert len(_keys(store)) == 22
    store.close()
    with sqlite3.connect(store.path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
