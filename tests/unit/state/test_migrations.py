"""How the state came to its shape: named steps, each once, in order."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Connection, inspect, text

from hypaware.errors import StateError
from hypaware.state import migrations, tables
from hypaware.state.store import Store


def _shape(connection: Connection) -> dict[str, list[tuple[str, str, bool, bool]]]:
    """Per table its columns in order: name, type, in the primary key, may be null."""
    found = inspect(connection)
    shape = {}
    for table in found.get_table_names():
        key = found.get_pk_constraint(table)["constrained_columns"]
        shape[table] = [
            (name, str(column["type"]), name in key, column["nullable"] and name not in key)
            for column in found.get_columns(table)
            if (name := column["name"])
        ]
    return shape


def test_migrations_make_exactly_the_tables_that_queries_see(store: Store, tmp_path: Path) -> None:
    declared = Store(tmp_path / "declared.db")
    with declared.transaction() as connection:
        tables.metadata.create_all(connection)
        expected = _shape(connection)
    declared.close()
    with store.reading() as connection:
        made = _shape(connection)
    made.pop("migrations")
    assert made == expected


def test_a_migration_is_applied_once(store: Store) -> None:
    store.migrate()
    with store.reading() as connection:
        assert connection.execute(text("SELECT name FROM migrations")).scalars().all() == [
            name for name, _ in migrations.STEPS
        ]


def test_an_older_state_gets_the_missing_migrations(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def add(connection: Connection) -> None:
        connection.execute(text("CREATE TABLE later (a TEXT)"))

    monkeypatch.setattr(migrations, "STEPS", (*migrations.STEPS, ("0002_later", add)))
    store.migrate()
    store.migrate()
    with store.reading() as connection:
        assert inspect(connection).has_table("later")


def test_a_failed_migration_leaves_the_state_unchanged(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(connection: Connection) -> None:
        connection.execute(text("CREATE TABLE later (a TEXT)"))
        raise ValueError("half way")

    monkeypatch.setattr(migrations, "STEPS", (*migrations.STEPS, ("0002_later", half)))
    with pytest.raises(ValueError, match="half way"):
        store.migrate()
    with store.reading() as connection:
        assert not inspect(connection).has_table("later")


def test_a_state_of_a_newer_version_is_rejected_unchanged(store: Store) -> None:
    with store.transaction() as connection:
        connection.execute(text("INSERT INTO migrations VALUES ('9999_future', 'now')"))
    with pytest.raises(StateError, match=r"newer version of hypaware.*9999_future") as refused:
        store.migrate()
    assert refused.value.kind == "state_too_new"
    assert refused.value.repair == ("pip install --upgrade hypaware",)


def test_released_migrations_keep_their_names() -> None:
    assert [name for name, _ in migrations.STEPS][:1] == ["0001_foundation"]
