"""The databases that can hold the state, for tests that run over each of them, in this process and in others."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest

from hypaware.state.sqlite_database import SqliteDatabase
from hypaware.state.store import StateDatabase
from tests.support.postgres_server import PASSWORD, USER, PostgresServer

KINDS = ("sqlite", "postgresql")
OPEN_STORE = """
import json, pathlib, sys
from hypaware.state.store import StateStore

def open_store(described):
    given = json.loads(described)
    if "path" in given:
        return StateStore(pathlib.Path(given["path"]))
    from hypaware.state.postgres_database import PostgresDatabase
    return StateStore(PostgresDatabase(**given))
"""
"""Defines `open_store` in a snippet; its argument is what `describe` returns."""
_numbers = itertools.count()


def make_database(
    kind: str, folder: Path, request: pytest.FixtureRequest, *, idle_seconds: float = 300, lock_seconds: float = 300
) -> StateDatabase:
    """Return a new, empty database. The PostgreSQL server is started by the first test that needs it."""
    if kind == "sqlite":
        return SqliteDatabase(folder / "state.db")
    from hypaware.state.postgres_database import PostgresDatabase

    server: PostgresServer = request.getfixturevalue("postgres")
    schema = f"state_{os.getpid()}_{next(_numbers)}"
    address = f"postgresql://127.0.0.1:{server.port}/postgres"
    return PostgresDatabase(address, USER, PASSWORD, schema, idle_seconds, lock_seconds)


def describe(database: StateDatabase) -> str:
    return json.dumps(dict(sorted(vars(database).items())), default=str)
