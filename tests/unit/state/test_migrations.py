"""The migrations of the state: each is applied once, in order."""

from __future__ import annotations

import pytest

from hypaware.errors import HypError, StateError
from hypaware.state import schema
from hypaware.state.store import StateStore


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


def test_released_migrations_keep_their_names() -> None:
    assert [name for name, _ in schema.MIGRATIONS][:1] == ["0001_foundation"]
