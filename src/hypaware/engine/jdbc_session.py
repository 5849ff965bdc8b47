"""A session of a PostgreSQL server that belongs to the JVM, for the lease on a shared lake.

The session ends with the JVM, even if it is killed. Python may be gone by then, or not yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from py4j.java_gateway import JVMView


class JdbcSession:
    """Runs statements one by one; each is its own transaction, unless BEGIN was run."""

    def __init__(self, view: JVMView, uri: str, properties: Mapping[str, str]) -> None:
        """Connect. The properties are those of the driver, such as `user` and `password`."""
        given = view.java.util.Properties()
        for name, value in properties.items():
            given.setProperty(name, value)
        # The driver itself: a driver manager finds only drivers of the class loader that calls it.
        self._connection = view.org.postgresql.Driver().connect(uri, given)

    def run(self, sql: str) -> list[list[Any]]:
        """Run a statement and return its rows."""
        statement = self._connection.createStatement()
        try:
            if not statement.execute(sql):
                return []
            found = statement.getResultSet()
            columns = range(1, found.getMetaData().getColumnCount() + 1)
            rows = []
            while found.next():
                rows.append([found.getObject(column) for column in columns])
            return rows
        finally:
            statement.close()

    def close(self) -> None:
        self._connection.close()
