"""What the clocks of servers showed, next to this machine's clock: one row per host, the newest.

A server's clock does not move with this machine's, so retention asks it before it believes that rows are old. A row is
written when a destination answers and either an hour has passed on this clock since the last one or the two clocks
differ by another amount than before.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hypaware.state.store import StateStore

_REFRESH = timedelta(hours=1)
# A Date header has whole seconds and is as old as its response.
_JITTER = timedelta(minutes=1)


@dataclass(frozen=True)
class ServerClock:
    host: str
    seen_at: datetime
    """This machine's clock when the response arrived."""
    date: datetime
    """The server's clock in that response."""

    @property
    def ahead(self) -> timedelta:
        """How far this machine's clock was ahead of the server's."""
        return self.seen_at - self.date


def list_server_clocks(store: StateStore) -> list[ServerClock]:
    with store.reading() as connection:
        if not connection.has_table("server_clocks"):
            # A status reads the state of an older version without upgrading it.
            return []
        rows = connection.rows("SELECT host, seen_at, date FROM server_clocks ORDER BY host")
    return [
        ServerClock(row["host"], datetime.fromisoformat(row["seen_at"]), datetime.fromisoformat(row["date"]))
        for row in rows
    ]


def record_server_clock(store: StateStore, clock: ServerClock) -> None:
    """Record the newest answer of a host, unless it is already known."""
    known = next((each for each in list_server_clocks(store) if each.host == clock.host), None)
    if known and abs(known.ahead - clock.ahead) <= _JITTER and timedelta() <= clock.seen_at - known.seen_at < _REFRESH:
        return
    times = {"seen_at": clock.seen_at.astimezone(UTC).isoformat(), "date": clock.date.astimezone(UTC).isoformat()}
    with store.transaction() as connection:
        connection.execute("DELETE FROM server_clocks WHERE host = ?", (clock.host,))
        connection.insert("server_clocks", {"host": clock.host, **times})
