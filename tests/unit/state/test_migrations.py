"""The migrations of the state: each is applied once, in order."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hypaware.errors import HypError, StateError
from hypaware.state import schema
from hypaware.state.flushes import SourceCheckpoint, checkpoint_to_row, load_checkpoints, promote_checkpoints
from hypaware.state.store import StateStore
from tests.support.state_database import KINDS, make_database


def test_a_migration_is_applied_once(store: StateStore) -> None:
    store.migrate()
    with store.reading() as connection:
        assert connection.values("SELECT name FROM migrations") == [name for name, _ in schema.MIGRATIONS]


def test_an_older_state_gets_the_missing_migrations(store: StateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    add = ("CREATE TABLE later (a TEXT)",)
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, ("0002_later", add)))
    store.migrate()
    store.migrate()
    with store.reading() as connection:
        assert connection.has_table("later")


def test_a_failed_migration_leaves_the_state_unchanged(store: StateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    half = ("CREATE TABLE later (a TEXT)", "CREATE TABLE later (a TEXT)")
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, ("0002_later", half)))
    with pytest.raises(HypError, match="already exists"):
        store.migrate()
    with store.reading() as connection:
        assert not connection.has_table("later")


def test_a_state_of_a_newer_version_is_rejected_unchanged(store: StateStore) -> None:
    with store.transaction() as connection:
        connection.execute("INSERT INTO migrations VALUES ('9999_future', 'now')")
    with pytest.raises(StateError, match=r"newer version of hypaware.*9999_future") as refused:
        store.migrate()
    assert refused.value.kind == "state_too_new"
    assert refused.value.repair == ("pip install --upgrade hypaware",)


@pytest.mark.parametrize("kind", KINDS)
def test_checkpoints_of_an_older_state_are_those_of_its_only_machine(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    mark = SourceCheckpoint("claude", "d", "/a", 1, 2, 3, 2, "h", ("m",), True, ((1, 2),), None, None, (("/x", None),))
    row = {name: value for name, value in checkpoint_to_row(mark).items() if name != "machine"}
    names = [name for name, _ in schema.MIGRATIONS]
    with closing(StateStore(make_database(kind, tmp_path, request))) as store:
        with monkeypatch.context() as older:
            older.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[: names.index("0013_machines")])
            store.migrate()
        with store.transaction() as connection:
            connection.insert("sources", row)
            connection.insert("pending_sources", {**row, "flush_id": "f", "path": "/b"})
        with store.reading() as connection:
            assert load_checkpoints(connection, "claude", "d") == {"/a": mark}, "a dry run reads it as it is"
        store.migrate()
        with store.transaction() as connection:
            promote_checkpoints(connection, "f")
            assert load_checkpoints(connection, "claude", "d") == {"/a": mark, "/b": replace(mark, path="/b")}


@pytest.mark.parametrize("applied", range(1, len(schema.MIGRATIONS)))
def test_the_state_of_every_earlier_version_becomes_that_of_a_new_home(
    applied: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(StateStore(tmp_path / "older.db")) as older, closing(StateStore(tmp_path / "new.db")) as new:
        with monkeypatch.context() as earlier:
            earlier.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:applied])
            older.migrate()
        older.migrate()
        new.migrate()
    assert list_columns(tmp_path / "older.db") == list_columns(tmp_path / "new.db")


def list_columns(path: Path) -> set[tuple[Any, ...]]:
    """Return the columns of all tables; added ones may be in another place."""
    columns = 'SELECT t.name, c.name, c.type, c."notnull", c.dflt_value, c.pk'
    with closing(sqlite3.connect(path)) as database:
        return set(database.execute(f"{columns} FROM sqlite_master t, pragma_table_info(t.name) c"))


def test_released_migrations_keep_their_names() -> None:
    assert [name for name, _ in schema.MIGRATIONS][:1] == ["0001_foundation"]
