"""Loads and saves the identity of the home in the state."""

from __future__ import annotations

import json
from dataclasses import asdict

from sqlalchemy import Connection, delete, insert, inspect, select

from hypaware.state import tables
from hypaware.state.identity import Identity, from_json

_KEY = "identity"


def load(connection: Connection) -> Identity | None:
    """Return the identity, or None in a new state, which may not have been migrated yet."""
    if not inspect(connection).has_table(tables.meta.name):
        return None
    found = connection.execute(select(tables.meta.c.value).where(tables.meta.c.key == _KEY)).scalar()
    return from_json(json.loads(found)) if found else None


def save(connection: Connection, identity: Identity) -> None:
    connection.execute(delete(tables.meta).where(tables.meta.c.key == _KEY))
    connection.execute(insert(tables.meta).values(key=_KEY, value=json.dumps(asdict(identity))))
