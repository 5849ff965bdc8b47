"""A read-only store: reads the state without changing it or creating side files."""

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
    """A store whose `reading` works and whose `transaction` does not."""

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
        raise AssertionError("a read-only store cannot be changed")

    def migrate(self) -> NoReturn:
        raise AssertionError("a read-only store cannot be changed")

    def close(self) -> None:
        """Do nothing: no connection is kept open."""
