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
from typing import Any

from sqlalchemy import Connection, and_, delete, insert, select, update

from hypaware.state import tables

_holds, _drops = tables.retention_holds, tables.retention_drops


@dataclass(frozen=True, order=True)
class Hold:
    source: str
    day: date
    since: date
    through: int


@dataclass(frozen=True, order=True)
class Drop:
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
        return {
            "source": self.source,
            "day": self.day.isoformat(),
            "rows": self.rows,
            "sinks": list(self.sinks),
            "at": self.at.isoformat(),
        }


def holds(connection: Connection, dataset: str) -> list[Hold]:
    found = connection.execute(select(_holds).where(_holds.c.dataset == dataset))
    return sorted(
        Hold(row.source, date.fromisoformat(row.day), date.fromisoformat(row.since), row.through) for row in found
    )


def set_holds(connection: Connection, dataset: str, new_holds: Iterable[Hold]) -> None:
    """Replace the holds of a dataset."""
    connection.execute(delete(_holds).where(_holds.c.dataset == dataset))
    values = [
        {
            "dataset": dataset,
            "source": hold.source,
            "day": hold.day.isoformat(),
            "since": hold.since.isoformat(),
            "through": hold.through,
        }
        for hold in new_holds
    ]
    if values:
        connection.execute(insert(_holds), values)


def drops(connection: Connection, dataset: str | None = None) -> list[Drop]:
    """Return the drops, oldest first."""
    chosen = select(_drops)
    if dataset is not None:
        chosen = chosen.where(_drops.c.dataset == dataset)
    return sorted((_drop(row) for row in connection.execute(chosen)), key=lambda drop: (drop.at, drop))


def announce(connection: Connection, dropping: Iterable[Drop]) -> None:
    """Record drops before their rows are removed."""
    for drop in dropping:
        connection.execute(
            insert(_drops).values(
                dataset=drop.dataset,
                source=drop.source,
                day=drop.day.isoformat(),
                at=drop.at.isoformat(),
                through=drop.through,
                row_count=drop.rows,
                sinks=json.dumps(drop.sinks),
                landed=0,
            )
        )


def settle(connection: Connection, landed: Collection[Drop], withdrawn: Collection[Drop]) -> None:
    """Finish announced drops: confirm those whose rows were removed, delete those whose rows all remain."""
    for drop in landed:
        connection.execute(update(_drops).where(_same(drop)).values(landed=1))
    for drop in withdrawn:
        connection.execute(delete(_drops).where(_same(drop)))


def _same(drop: Drop) -> Any:
    key = {"dataset": drop.dataset, "source": drop.source, "day": drop.day.isoformat(), "at": drop.at.isoformat()}
    return and_(*(_drops.c[name] == value for name, value in key.items()))


def _drop(row: Any) -> Drop:
    return Drop(
        row.dataset,
        row.source,
        date.fromisoformat(row.day),
        datetime.fromisoformat(row.at),
        row.through,
        row.row_count,
        tuple(json.loads(row.sinks)),
        bool(row.landed),
    )
