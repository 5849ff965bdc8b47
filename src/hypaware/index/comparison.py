"""Compare the index with the data files, for `hyp verify`.

This module reads the rows and counts in its own way, so that an error of the refresh cannot hide itself.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from hypaware.home import Home
from hypaware.home.sqlite_readonly import open_readonly
from hypaware.home.storage import arrow_source
from hypaware.iceberg import metadata
from hypaware.index import blocks, database, refresh
from hypaware.index.schema import (
    DATASET,
    IS_CALL,
    IS_COUNTED,
    IS_FAILED,
    IS_RESULT,
    IS_TURN,
    OVER,
    SLOT_OF,
    SPOOLED,
    TOKENS,
)
from hypaware.model.datasets import SEQ

_MAX_PROBLEMS = 20
_BATCH_ROWS = 2_000
_ATTEMPTS = 3
_COLUMNS = (
    *(SEQ, "gateway_id", "session_id", "message_id", "part_index", "part_type", "provider_type", "content_text"),
    *("tool_args", "attributes"),
)
_COUNTED = (*TOKENS, "cache_write_1h")
_FIGURES = ("messages", "turns", "parts", "tool_calls", "errors")
_SUMS = (
    ("totals", "activity", ("model, cwd", (*_FIGURES, *_COUNTED))),
    ("long_totals", "long_prompts", ("model, cwd, over", _COUNTED)),
    ("tool_totals", "tools", ("tool", ("calls", "errors"))),
)
"""Sums over all slots of a session, the sums by slot, what both are by, and what is added up."""
_PLACE = f"p.session, {SLOT_OF}, ifnull(p.model, 0), ifnull(p.cwd, 0)"
_USED = ", ".join(f"ifnull(sum(u.{name}), 0)" for name in _COUNTED)
_ADDED = ", ".join(f"sum({name})" for name in _COUNTED)
_HAS_MODEL = f"(model <> 0 OR {' + '.join(_COUNTED)} > 0)"
_STORED = {
    "quarters of an hour": (
        f"SELECT session, slot, model, cwd, {', '.join((*_FIGURES, *_COUNTED))} FROM activity",
        f"""SELECT {_PLACE}, count(DISTINCT CASE WHEN {IS_COUNTED} THEN p.message END),
            total((p.flags & {IS_TURN}) <> 0),
            total({IS_COUNTED}), total({IS_COUNTED} AND {IS_CALL}), total({IS_COUNTED} AND {IS_FAILED}), {_USED}
            FROM parts p LEFT JOIN usage u ON u.seq = p.seq GROUP BY 1, 2, 3, 4""",
    ),
    "long prompts": (
        f"SELECT session, slot, model, cwd, over, {', '.join(_COUNTED)} FROM long_prompts",
        f"""SELECT {_PLACE}, {OVER}, {_USED} FROM usage u JOIN parts p ON p.seq = u.seq
            WHERE {OVER} IS NOT NULL GROUP BY 1, 2, 3, 4, 5""",
    ),
    "tool calls": (
        "SELECT session, slot, tool, calls, errors FROM tools",
        f"""SELECT p.session, {SLOT_OF}, p.tool, total({IS_CALL}), total({IS_RESULT} AND {IS_FAILED}) FROM parts p
            WHERE p.tool IS NOT NULL AND {IS_COUNTED} AND ({IS_CALL} OR {IS_RESULT}) GROUP BY 1, 2, 3""",
    ),
    "times": (
        "SELECT id, started_at, ended_at FROM sessions",
        "SELECT session, min(at), max(at) FROM parts GROUP BY 1",
    ),
    "turns, errors and tokens": (
        f"SELECT id, turns, errors, {', '.join(_COUNTED)} FROM sessions",
        f"SELECT session, sum(turns), sum(errors), {_ADDED} FROM activity GROUP BY 1",
    ),
    "models": (
        "SELECT id, model FROM sessions",
        f"""SELECT session, CASE count(DISTINCT model) FILTER (WHERE {_HAS_MODEL})
              WHEN 0 THEN 0 WHEN 1 THEN max(model) FILTER (WHERE {_HAS_MODEL}) END
            FROM activity GROUP BY 1""",
    ),
    "clients in its totals": (
        """SELECT session, machine, client FROM totals UNION SELECT session, machine, client FROM long_totals""",
        "SELECT id, machine, client FROM sessions",
    ),
    "counted rows in its totals": (
        """SELECT session, 'session', sum(starts_session) FROM totals GROUP BY 1
           UNION ALL SELECT session, 'cwd ' || cwd, sum(starts_cwd) FROM totals GROUP BY 1, cwd
           UNION ALL SELECT session, 'model ' || model, sum(starts_model) FROM totals GROUP BY 1, model""",
        """SELECT DISTINCT session, 'session', 1 FROM totals UNION SELECT session, 'cwd ' || cwd, 1 FROM totals
           UNION SELECT session, 'model ' || model, 1 FROM totals""",
    ),
}
"""The stored figures of each session, and their sources; the first column is the session's number."""
_Session = tuple[str, str]
"""Session id and machine."""


def compare_index(home: Home) -> list[str]:
    """Return the differences between the index and the lake. A home without an index has none."""
    if not home.index.is_file():
        return []
    for _ in range(_ATTEMPTS):
        refresh.refresh_index(home)
        # Under the lock, so that the index does not change. The lake may: then both are read again.
        with database.hold_lock(home, database.LOCK_SECONDS), open_readonly(home.index) as connection:
            if refresh.plan_lake(home, connection) is None:
                try:
                    return _Comparison(home, connection).run()
                except FileNotFoundError:
                    continue
    return [f"{home.index} could not be compared, because the lake changed all the time"]


def compare_counts(home: Home) -> list[str]:
    """Return whether index and lake differ in their number of rows, if the lake has not changed since the refresh."""
    with open_readonly(home.index) as connection:
        found = metadata.find_table(home, DATASET)
        if found is None or refresh.plan_lake(home, connection) is not None:
            return []
        files = metadata.iter_live_files(metadata.read_metadata(found.metadata))
        in_lake = sum(file.sequenced for file in files)
        ((indexed,),) = connection.execute("SELECT count(*) FROM parts WHERE seq < ?", (SPOOLED,))
    return [] if indexed == in_lake else [f"{home.index} has {indexed} rows of the lake's {in_lake}"]


@dataclass
class _SessionFigures:
    parts: int = 0
    tool_calls: int = 0
    messages: set[str] = field(default_factory=set)
    tokens: Counter[str] = field(default_factory=Counter)


class _Comparison:
    def __init__(self, home: Home, connection: sqlite3.Connection) -> None:
        self._home = home
        self._connection = connection
        self._with_text = bool(database.read_meta(connection, "text"))
        self._problems: list[str] = []
        self._found = 0
        self._sessions: dict[_Session, _SessionFigures] = defaultdict(_SessionFigures)

    def run(self) -> list[str]:
        ((check,),) = self._connection.execute("PRAGMA quick_check(1)")
        if check != "ok":
            return [f"{self._home.index}: {check}"]
        for batch in self._read_lake():
            self._compare_rows(batch)
        ((indexed,),) = self._connection.execute("SELECT count(*) FROM parts WHERE seq < ?", (SPOOLED,))
        if indexed > self._found:
            self._add(f"the index has {indexed - self._found} rows that the lake does not have")
        # Counts of sessions include rows of the spool, which the lake cannot confirm.
        query = "SELECT DISTINCT session FROM parts WHERE seq >= ?"
        self._compare_sessions({session for (session,) in self._connection.execute(query, (SPOOLED,))})
        self._compare_sums()
        self._compare_text()
        return self._problems[:_MAX_PROBLEMS]

    def _add(self, problem: str) -> None:
        if len(self._problems) < _MAX_PROBLEMS:
            self._problems.append(f"{self._home.index}: {problem}")

    def _read_lake(self) -> Iterator[list[dict[str, Any]]]:
        import pyarrow.parquet as pq

        found = metadata.find_table(self._home, DATASET)
        for file in metadata.iter_live_files(metadata.read_metadata(found.metadata)) if found else ():
            with pq.ParquetFile(arrow_source(file.path), pre_buffer=False) as opened:
                names = [name for name in _COLUMNS if name in opened.schema_arrow.names]
                for batch in opened.iter_batches(_BATCH_ROWS, columns=names, use_threads=False):
                    yield [row for row in batch.to_pylist() if row[SEQ] is not None]

    def _compare_rows(self, rows: list[dict[str, Any]]) -> None:
        by_block: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            found = self._connection.execute("SELECT block FROM parts WHERE seq = ?", (row[SEQ],)).fetchone()
            if found is None:
                self._add(f"the row with sequence {row[SEQ]} is missing")
            else:
                self._found += 1
                by_block[found[0]].append(row)
            self._count(row)
        for block, members in by_block.items():
            entries = {entry.seq: entry for entry in blocks.load_block(self._connection, block)}
            for row in members:
                if (entry := entries.get(row[SEQ])) is None:
                    self._add(f"block {block} lacks the row with sequence {row[SEQ]}")
                    continue
                expected = [row["message_id"], row["part_index"]]
                texts = (row.get("content_text"), row.get("tool_args")) if self._with_text else (None, None)
                if entry.keys[1:3] != expected or (entry.text, entry.tool_args) != texts:
                    self._add(f"the row with sequence {row[SEQ]} differs from the lake's")

    def _count(self, row: dict[str, Any]) -> None:
        figures = self._sessions[row["session_id"], row["gateway_id"]]
        if row.get("provider_type") != "gateway":
            figures.parts += 1
            figures.tool_calls += row["part_type"] == "tool_call"
            figures.messages.add(row["message_id"])
        attributes = row.get("attributes")
        if attributes and '"usage":' in attributes:
            usage = orjson.loads(attributes).get("usage")
            for name in TOKENS if isinstance(usage, dict) else ():
                count = usage.get(f"{name}_tokens")
                if type(count) is int:
                    figures.tokens[name] += count

    def _compare_sessions(self, spooled: set[int]) -> None:
        sums = ", ".join(f"(SELECT ifnull(sum({name}), 0) FROM activity WHERE session = s.id)" for name in TOKENS)
        query = (
            f"SELECT s.id, s.session_id, n.name, s.parts, s.tool_calls, s.messages, {sums}"
            " FROM sessions s JOIN names n ON n.id = s.machine"
        )
        for number, session_id, machine, parts, tool_calls, messages, *tokens in self._connection.execute(query):
            figures = self._sessions.pop((session_id, machine), _SessionFigures())
            if number in spooled:
                continue
            expected = (figures.parts, figures.tool_calls, len(figures.messages))
            if (parts, tool_calls, messages) != expected:
                self._add(
                    f"session {session_id} has {parts} parts, {tool_calls} tool calls and {messages} messages; "
                    "the lake has {}, {} and {}".format(*expected)
                )
            if dict(zip(TOKENS, tokens, strict=True)) != {name: figures.tokens[name] for name in TOKENS}:
                self._add(f"session {session_id} has other token counts than the lake")
        for session_id, machine in self._sessions:
            self._add(f"session {session_id} of {machine} is missing")

    def _compare_sums(self) -> None:
        """Compare the sums by slot with the rows, those over all slots with those by slot, and sessions with both."""
        for totals, by_slot, (keys, summed) in _SUMS:
            sums = ", ".join(f"sum({name})" for name in summed)
            added = f"SELECT session, {keys}, min(slot), max(slot), {sums} FROM {by_slot} GROUP BY session, {keys}"
            stored = f"SELECT session, {keys}, first_slot, last_slot, {', '.join(summed)} FROM {totals}"
            for session_id in self._find_differing(stored, added):
                self._add(f"session {session_id} has other {totals.replace('_', ' ')} than its quarters of an hour")
        for name, (stored, computed) in _STORED.items():
            for session_id in self._find_differing(stored, computed):
                self._add(f"session {session_id} has other {name} than its rows")

    def _find_differing(self, stored: str, computed: str) -> list[str]:
        """Return the ids of the sessions for which the two statements do not have the same rows."""
        rows = f"SELECT * FROM (SELECT * FROM ({computed}) EXCEPT SELECT * FROM ({stored}))"
        more = f"SELECT * FROM (SELECT * FROM ({stored}) EXCEPT SELECT * FROM ({computed}))"
        # By position: the first column of a statement is the session, whatever its name is.
        numbers = {row[0] for statement in (rows, more) for row in self._connection.execute(statement)}
        names = dict(self._connection.execute("SELECT id, session_id FROM sessions")) if numbers else {}
        return [names.get(number, f"number {number}") for number in sorted(numbers)]

    def _compare_text(self) -> None:
        for month, expected in self._connection.execute("SELECT month, row_count FROM months").fetchall():
            ((found,),) = self._connection.execute(f"SELECT count(*) FROM text_{month}_docsize")
            if found != expected:
                self._add(f"the full-text table of {month} has {found} rows instead of {expected}")
