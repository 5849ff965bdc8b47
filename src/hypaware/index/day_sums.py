"""Sums by day or week, read as ranges of an index instead of by sorting all sessions.

A day of a time zone is a range of slots. Rows of `totals` that lie within one day are added up range by range from the
index `totals_by_time`, and sessions within one day are counted from `sessions_by_end`. Sessions of several days are
read from `activity`. This is possible if all rows are asked for.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hypaware.index.schema import SLOT
from hypaware.index.time_zones import SlotRange

if TYPE_CHECKING:
    from sqlite3 import Connection

# The first model is the least one, and each of the others the least one that follows.
MODELS = """WITH RECURSIVE found(model) AS (
    SELECT min(model) FROM totals
    UNION ALL SELECT (SELECT min(model) FROM totals WHERE model > found.model) FROM found WHERE found.model IS NOT NULL)
SELECT model FROM found WHERE model IS NOT NULL"""
_RANGES = """WITH ranges(key, first, last) AS MATERIALIZED (
    SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(:ranges))"""
Sums = dict[tuple[int, int], tuple[int, ...]]


def sum_within(
    connection: Connection, ranges: Sequence[SlotRange], models: Sequence[int], columns: Sequence[str]
) -> Sums:
    """Return the sums of the rows of `totals` that lie within one range, by its key and the model."""
    sums = ", ".join(f"sum({column})" for column in columns)
    # One value for each range and model: a statement that groups would sort the rows.
    statement = f"""{_RANGES} SELECT r.key, m.value, (
            SELECT json_array({sums}) FROM totals t WHERE t.model = m.value
            AND t.first_slot BETWEEN r.first AND r.last AND t.last_slot <= r.last HAVING count(*) > 0)
        FROM json_each(:models) m CROSS JOIN ranges r"""
    found = _run(connection, statement, ranges, models)
    rows = [(key, model, packed) for key, model, packed in found if packed is not None]
    numbers = json.loads(f"[{','.join(packed for _, _, packed in rows)}]")
    return {(key, model): tuple(each) for (key, model, _), each in zip(rows, numbers, strict=True)}


def add_beyond(
    connection: Connection,
    ranges: Sequence[SlotRange],
    models: Sequence[int],
    columns: Sequence[str],
    key: str,
    sums: Sums,
) -> None:
    """Add the rows of `totals` that begin in one range and end in another. `key` is the SQL for the key of `b.slot`."""
    statement = f"""{_RANGES} SELECT {key}, b.model, {", ".join(f"sum(b.{column})" for column in columns)}
        FROM json_each(:models) m CROSS JOIN ranges r
        CROSS JOIN totals t ON t.model = m.value AND t.first_slot BETWEEN r.first AND r.last AND t.last_slot > r.last
        CROSS JOIN activity b ON b.session = t.session AND b.model = t.model AND b.cwd = t.cwd GROUP BY 1, 2"""
    for at, model, *numbers in _run(connection, statement, ranges, models):
        before = sums.get((at, model))
        sums[at, model] = tuple(numbers) if before is None else tuple(map(sum, zip(before, numbers, strict=True)))


def count_sessions_within(connection: Connection, ranges: Sequence[SlotRange], key: str) -> dict[int, int]:
    """Return the number of sessions in each range. `key` is the SQL for the key of `b.slot`."""
    moments = [SlotRange(each.key, each.first * SLOT, each.last * SLOT + SLOT - 1) for each in ranges]
    ended = "s.ended_at BETWEEN r.first AND r.last"
    statement = f"""{_RANGES} SELECT r.key, (
            SELECT count(*) FROM sessions s WHERE {ended} AND s.started_at >= r.first) FROM ranges r"""
    counts = Counter(dict(_run(connection, statement, moments)))
    statement = f"""{_RANGES} SELECT DISTINCT {key}, b.session FROM ranges r
        CROSS JOIN sessions s ON {ended} AND s.started_at < r.first CROSS JOIN activity b ON b.session = s.id"""
    counts.update(at for at, _ in _run(connection, statement, moments))
    return {at: count for at, count in counts.items() if count}


def _run(
    connection: Connection, statement: str, ranges: Sequence[SlotRange], models: Sequence[int] = ()
) -> list[tuple[Any, ...]]:
    cursor = connection.cursor()
    cursor.row_factory = None
    values = {"ranges": json.dumps(ranges), "models": json.dumps(models)}
    return cursor.execute(statement, values).fetchall()
