"""The store: a transaction is durable when it returns, or has no effect. Over SQLite and PostgreSQL."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hypaware.errors import HypError, StateError
from hypaware.home import Home
from hypaware.state.sqlite_database import is_intact
from hypaware.state.store import StateStore
from tests.support.processes import fork, run, together, was_killed
from tests.support.state_database import OPEN_STORE, describe

_WRITE = (
    OPEN_STORE
    + """
with open_store(sys.argv[1]).transaction() as connection:
    connection.insert("meta", {"key": "k", "value": "v"})
print("committed", flush=True)
"""
)


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


@pytest.mark.parametrize(("point", "keys"), [("state.commit.before-commit", []), ("state.commit.after-commit", ["k"])])
def test_a_process_killed_around_a_commit_leaves_it_complete_or_undone(
    store: StateStore, home: Home, point: str, keys: list[str]
) -> None:
    done = run(_WRITE, home, describe(store.database), crash_at=point)
    assert was_killed(done), done.stderr
    assert done.stdout == ""
    assert _keys(store) == keys


def test_a_statement_that_failed_leaves_nothing_of_its_transaction(store: StateStore) -> None:
    """Even if the caller continues after the error, and even though PostgreSQL commits nothing without saying so."""
    _put(store, "a")

    def continue_after_an_error() -> None:
        with store.transaction() as connection:
            connection.insert("meta", {"key": "b", "value": ""})
            with pytest.raises(StateError):
                connection.insert("meta", {"key": "a", "value": ""})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        continue_after_an_error()
    assert _keys(store) == ["a"]


def test_a_store_that_is_only_read_cannot_be_changed(store: StateStore) -> None:
    _put(store, "a")
    read_only = StateStore(store.database, read_only=True)
    assert _keys(read_only) == ["a"]
    with pytest.raises(AssertionError, match="read-only"), read_only.transaction():
        pass
    with pytest.raises(HypError), read_only.reading() as connection:
        connection.insert("meta", {"key": "b", "value": ""})
    assert _keys(store) == ["a"]


def test_text_is_ordered_by_its_code_points(store: StateStore) -> None:
    """Times with and without a fraction are compared as text, so the order must not follow a language."""
    keys = ["2026-01-01T00:00:00+00:00", "2026-01-01T00:00:00.5+00:00", "B", "a", "ä", "𐀀"]
    for key in reversed(keys):
        _put(store, key)
    with store.reading() as connection:
        assert connection.values("SELECT key FROM meta ORDER BY key") == keys
        assert connection.value("SELECT max(key) FROM meta") == keys[-1]


def test_any_text_can_be_stored(store: StateStore) -> None:
    text = "50% of :them? 'quoted' \\ \n é \U0001f600"
    with store.transaction() as connection:
        connection.insert("meta", {"key": "k", "value": text})
        assert connection.value("SELECT value FROM meta WHERE value = :text", {"text": text}) == text
        assert connection.value("SELECT key FROM meta WHERE value LIKE '50%' AND key <> ':name?'") == "k"


@pytest.mark.hazard(79)
def test_a_forked_child_opens_its_own_connections(store: StateStore) -> None:
    """A connection that two processes use corrupts the file of SQLite, and mixes up the answers of PostgreSQL."""
    _put(store, "before")
    inherited = _driver_connection(store)

    def child(number: int) -> None:
        assert _driver_connection(store) != inherited
        for turn in range(10):
            _put(store, f"{number}-{turn}")

    assert [fork(lambda: child(1)), fork(lambda: child(2))] == [0, 0]
    _put(store, "after")
    assert len(_keys(store)) == 22


@pytest.mark.hazard(79)
def test_a_state_that_forked_children_used_is_intact(sqlite_store: StateStore, state_file: Path) -> None:
    assert together([lambda: _put(sqlite_store, "1"), lambda: _put(sqlite_store, "2")]) == [0, 0]
    sqlite_store.close()
    assert is_intact(state_file)
