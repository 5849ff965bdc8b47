"""The state in PostgreSQL: clients that are stopped or cut off, a server that stops, and what an error says."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from hypaware.errors import Retryable, StateError
from hypaware.home import Home
from hypaware.state.postgres_database import PostgresDatabase, translate
from hypaware.state.store import StateStore
from tests.support.ports import FreePort
from tests.support.postgres_server import PASSWORD, USER, PostgresServer, postgres_server
from tests.support.processes import kill, running, succeed
from tests.support.state_database import OPEN_STORE, describe, make_database

_WRITE_SLOWLY = (
    OPEN_STORE
    + """
from hypaware.errors import HypError
store, written, outcome = open_store(sys.argv[1]), False, None
while outcome is None:
    try:
        with store.transaction() as connection:
            connection.insert("meta", {"key": "slow", "value": ""})
            written = True
            print("written", flush=True)
            sys.stdin.readline()
        outcome = "committed"
    except HypError as error:
        # On a busy machine, the transaction may be idle for too long before it gets here.
        outcome = error.kind if written else None
print(outcome, flush=True)
"""
)
_SHORT, _LONG = 1.0, 300.0


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateStore]:
    database = make_database("postgresql", tmp_path, request, idle_seconds=_LONG, lock_seconds=_LONG)
    with closing(StateStore(database)) as made:
        made.migrate()
        yield made


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


def _change(store: StateStore, *, idle_seconds: float = _LONG, lock_seconds: float = _LONG) -> PostgresDatabase:
    """Return the same database with other settings."""
    assert isinstance(store.database, PostgresDatabase)
    return replace(store.database, idle_seconds=idle_seconds, lock_seconds=lock_seconds)


def _put(store: StateStore, key: str) -> None:
    with store.transaction() as connection:
        connection.insert("meta", {"key": key, "value": ""})


def _keys(store: StateStore) -> list[str]:
    with store.reading() as connection:
        return sorted(connection.values("SELECT key FROM meta"))


@pytest.mark.hazard(115)
def test_a_client_that_is_stopped_in_a_transaction_loses_it_and_cannot_commit_it_later(
    store: StateStore, home: Home
) -> None:
    with running(_WRITE_SLOWLY, home, describe(_change(store, idle_seconds=_SHORT))) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stdout.readline() == "written\n"
        writer.send_signal(signal.SIGSTOP)
        # This waits for the lock, which the server takes from the stopped client.
        _put(store, "quick")
        writer.send_signal(signal.SIGCONT)
        writer.stdin.write("\n")
        writer.stdin.flush()
        assert writer.stdout.readline() == "state_unavailable\n"
    assert _keys(store) == ["quick"]


def test_a_client_that_is_killed_in_a_transaction_leaves_nothing_and_blocks_no_other(
    store: StateStore, home: Home
) -> None:
    with running(_WRITE_SLOWLY, home, describe(_change(store, idle_seconds=_SHORT))) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "written\n"
        kill(writer)
    _put(store, "next")
    assert _keys(store) == ["next"]


def test_a_state_that_stays_locked_is_a_retryable_error(store: StateStore) -> None:
    with closing(StateStore(_change(store, lock_seconds=0.01))) as impatient:
        with store.transaction(), pytest.raises(Retryable, match="lock timeout") as told:
            _put(impatient, "a")
        assert told.value.kind == "state_unavailable"
        _put(impatient, "a")
    assert _keys(store) == ["a"]


def test_a_transaction_with_a_failed_statement_is_not_reported_as_committed(store: StateStore) -> None:
    """PostgreSQL answers its COMMIT without an error."""
    _put(store, "a")

    def hide_the_error() -> None:
        with store.transaction() as connection:
            connection.insert("meta", {"key": "b", "value": ""})
            with pytest.raises(StateError, match="duplicate key"):
                connection.insert("meta", {"key": "a", "value": ""})

    with pytest.raises(StateError, match="nothing of it was stored"):
        hide_the_error()
    assert _keys(store) == ["a"]


def test_a_server_that_stops_is_a_retryable_error_and_the_same_store_continues_when_it_is_back(
    own_server: PostgresServer,
) -> None:
    address = f"postgresql://127.0.0.1:{own_server.port}/postgres"
    with closing(StateStore(PostgresDatabase(address, USER, PASSWORD))) as store:
        store.migrate()
        _put(store, "before")

        def stop_in_a_transaction() -> None:
            with store.transaction() as connection:
                connection.insert("meta", {"key": "during", "value": ""})
                own_server.stop()

        with pytest.raises(Retryable, match=r"lake\.state") as told:
            stop_in_a_transaction()
        assert told.value.kind == "state_unavailable"
        with pytest.raises(Retryable, match=r"lake\.state"):
            _put(store, "while it is down")
        own_server.start()
        _put(store, "after")
        assert _keys(store) == ["after", "before"]
        # A connection that was idle while the server restarted is replaced.
        own_server.stop()
        own_server.start()
        _put(store, "later")
        assert _keys(store) == ["after", "before", "later"]


def test_an_error_names_the_setting_and_the_server_but_never_the_password(
    postgres: PostgresServer, free_port: FreePort
) -> None:
    address = f"postgresql://127.0.0.1:{postgres.port}/postgres"
    wrong = PostgresDatabase(f"{address}?sslmode=prefer", USER, "hunter2")
    nowhere = PostgresDatabase(f"postgresql://127.0.0.1:{free_port()}/postgres", USER, "hunter2")
    for database, reason in ((wrong, "authentication failed"), (nowhere, "refused")):
        with pytest.raises(Retryable, match=reason) as told:
            StateStore(database).migrate()
        assert str(database) in told.value.message
        assert "lake.state" in told.value.message
        assert "hunter2" not in told.value.message + repr(database) + str(told.value.__cause__)
    assert str(wrong) == address


def test_two_states_in_one_database_do_not_wait_for_each_other(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    one, other = (
        StateStore(make_database("postgresql", tmp_path, request, idle_seconds=_LONG, lock_seconds=_LONG))
        for _ in range(2)
    )
    with closing(one), closing(other):
        one.migrate()
        other.migrate()
        with one.transaction() as connection:
            connection.insert("meta", {"key": "one", "value": ""})
            _put(other, "other")
        assert (_keys(one), _keys(other)) == (["one"], ["other"])


def test_a_nul_character_is_replaced_because_text_cannot_hold_it(store: StateStore) -> None:
    _put(store, "a\0b")
    with store.reading() as connection:
        assert connection.value("SELECT key FROM meta WHERE key = ?", ("a\0b",)) == "a\ufffdb"


def test_the_state_of_a_home_does_not_load_the_driver_of_postgresql(home: Home) -> None:
    code = "import sys, hypaware.state.store, hypaware.state.home_opener; print('psycopg' in sys.modules)"
    assert succeed(code, home) == "False\n"


@pytest.mark.parametrize(
    ("sql", "translated"),
    [
        ("SELECT a FROM t WHERE b = ? AND c = :c_1", "SELECT a FROM t WHERE b = %s AND c = %(c_1)s"),
        ("SELECT '?' || ':x' || '5%', 1 % 2", "SELECT '?' || ':x' || '5%%', 1 %% 2"),
        ("SELECT a::text, 'it''s ?'", "SELECT a::text, 'it''s ?'"),
        ("CREATE TABLE t (a TEXT, b BLOB, TEXTS INT)", 'CREATE TABLE t (a TEXT COLLATE "C", b BYTEA, TEXTS INT)'),
        ("UPDATE t SET a = 'TEXT'", "UPDATE t SET a = 'TEXT'"),
    ],
)
def test_statements_are_translated_outside_of_quotes(sql: str, translated: str) -> None:
    assert translate(sql) == translated
