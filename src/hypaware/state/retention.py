"""Retention in the state: holds, which delay the removal of rows for a sink, and drops, which record removals.

A hold applies to the rows of one (dataset, source, day) with sequences up to `through`. It begins on the day on which
retention first found that they have expired and that a sink has not received them. Rows of the same day that arrive
later get their own, later hold. A drop is recorded before its rows are removed and is kept; `landed` is 0 until the
removal is confirmed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hypaware.state.store import Connection

_OF_DROP = "dataset = :dataset AND source = :source AND day = :day AND at = :at"


@dataclass(frozen=True, order=True)
class RetentionHold:
    source: str
    day: date
    since: date
    through: int


@dataclass(frozen=True, order=True)
class RetentionDrop:
    """Rows that retention removed, or is about to remove, although the sinks have not received them."""

    dataset: str
    source: str
    day: date
    at: datetime
    through: int
    rows: int
    sinks: tuple[str, ...]
    landed: bool = False

    def as_json(self) -> dict[str, object]:
        day, at = self.day.isoformat(), self.at.isoformat()
        return {"source": self.source, "day": day, "rows": self.rows, "sinks": list(self.sinks), "at": at}


def list_holds(connection: Connection, dataset: str) -> list[RetentionHold]:
    rows = connection.rows("SELECT source, day, since, through FROM retention_holds WHERE dataset = ?", (dataset,))
    return sorted(
        RetentionHold(row["source"], date.fromisoformat(row["day"]), date.fromisoformat(row["since"]), row["through"])
        for row in rows
    )


def set_holds(connection: Connection, dataset: str, new_holds: Iterable[RetentionHold]) -> None:
    """Replace the holds of a dataset."""
    connection.execute("DELETE FROM retention_holds WHERE dataset = ?", (dataset,))
    for hold in new_holds:
        days = {"day": hold.day.isoformat(), "since": hold.since.isoformat()}
        connection.insert("retention_holds", {**vars(hold), **days, "dataset": dataset})


def list_drops(connection: Connection, dataset: str | None = None) -> list[RetentionDrop]:
    """Return the drops, oldest first."""
    rows = connection.rows("SELECT * FROM retention_drops WHERE dataset = coalesce(?, dataset)", (dataset,))
    drops = []
    for row in rows:
        times = {"day": date.fromisoformat(row["day"]), "at": datetime.fromisoformat(row["at"])}
        values = {"rows": row.pop("row_count"), "sinks": tuple(json.loads(row["sinks"])), "landed": bool(row["landed"])}
        drops.append(RetentionDrop(**{**row, **times, **values}))
    return sorted(drops, key=lambda drop: (drop.at, drop))


def announce_drops(connection: Connection, drops: Iterable[RetentionDrop]) -> None:
    """Record drops before their rows are removed."""
    for drop in drops:
        values = {"through": drop.through, "row_count": drop.rows, "sinks": json.dumps(drop.sinks), "landed": 0}
        connection.insert("retention_drops", {**_key(drop), **values})


def resolve_drops(
    connection: Connection, landed: Collection[RetentionDrop], withdrawn: Collection[RetentionDrop]
) -> None:
    """Finish announced drops: confirm those whose rows were removed, delete those whose rows all remain."""
    for drop in landed:
        connection.execute(f"UPDATE retention_drops SET landed = 1 WHERE {_OF_DROP}", _key(drop))
    for drop in withdrawn:
        connection.execute(f"DELETE FROM retention_drops WHERE {_OF_DROP}", _key(drop))


def _key(drop: RetentionDrop) -> dict[str, Any]:
    return {"dataset": drop.dataset, "source": drop.source, "day": drop.day.isoformat(), "at": drop.at.isoformat()}
