"""A state that is only looked at, for steps that read one: nothing in it changes, and nothing beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import sqlalchemy
from sqlalchemy import Connection

from hypaware.looking import look_into
from hypaware.state.store import Store


class Glance(Store):
    """As a store in what it reads; it has no transaction."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with look_into(self.path) as raw:
            raw.execute("BEGIN")
            engine = sqlalchemy.create_engine("sqlite://", creator=lambda: raw, poolclass=sqlalchemy.StaticPool)
            with engine.connect() as connection, connection.begin():
                yield connection

    def transaction(self) -> NoReturn:
        raise AssertionError("whoever looks at a state does not change it")

    def migrate(self) -> NoReturn:
        raise AssertionError("whoever looks at a state does not change it")

    def close(self) -> None:
        """Nothing is held between two looks."""
