"""An index of given parts in memory, filled without a lake: for tests of search, which only read it."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from hypaware.index import blocks, schema
from hypaware.index.filters import month_of
from hypaware.index.tokens import TOKENIZER, kind_words, prepare_text

DAY = 86_400 * 1_000_000
START = 1_767_225_600 * 1_000_000
"""2026-01-01, in microseconds."""


@dataclass(frozen=True)
class SamplePart:
    text: str | None
    session: str = "session-1"
    at: int = START
    role: str = "assistant"
    type: str = "text"
    tool: str | None = None
    tool_args: str | None = None
    cwd: str = "/home/me/shop"
    client: str = "claude"
    model: str = "claude-opus-4-8"
    is_error: bool = False
    seq: int | None = None


class SearchIndex:
    """Has the attributes of `Index` that search uses."""

    def __init__(self, parts: Sequence[SamplePart] = ()) -> None:
        self.connection = sqlite3.connect(":memory:")
        self.connection.row_factory = sqlite3.Row
        for statement in schema.TABLES:
            self.connection.execute(statement)
        self.progress: float | None = None
        self.hides_sessions = False
        self.holds_text = True
        self._seqs = count(1)
        self._blocks = count(1)
        self.parts: dict[int, SamplePart] = {}
        self.add(parts)

    def add(self, parts: Sequence[SamplePart]) -> None:
        for part in parts:
            self._add_part(next(self._seqs) if part.seq is None else part.seq, part)

    def _add_part(self, seq: int, part: SamplePart) -> None:
        run = self.connection.execute
        self.parts[seq] = part
        session = self._session(part)
        names = [self._name(each) for each in (part.role, part.type, part.tool, part.model, part.cwd, part.client)]
        role, type_, tool, model, cwd, client = names
        flags = schema.IS_ERROR if part.is_error else 0
        block = next(self._blocks)
        keys = blocks.pack([blocks.encode_keys([seq, f"message-{seq}", 0])])
        texts = blocks.pack([blocks.encode_text(part.text, part.tool_args)])
        run("INSERT INTO blocks VALUES (?, ?, ?)", (block, keys, texts))
        run(
            "INSERT INTO parts (seq, session, message, message_index, part_index, at, role, type, tool, model, cwd, "
            "client, flags, file, block, hash) VALUES (?, ?, ?, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, 0)",
            (seq, session, seq, seq, part.at, role, type_, tool, model, cwd, client, flags, block),
        )
        run(
            "INSERT INTO activity (session, slot, model, cwd, messages, turns, parts, tool_calls, errors) "
            "VALUES (?, ?, ?, ?, 1, 0, 1, 0, 0) ON CONFLICT DO UPDATE SET parts = parts + 1, messages = messages + 1",
            (session, part.at // schema.SLOT, model, cwd),
        )
        if (text := prepare_text(part.text, part.tool_args)) is not None:
            month = month_of(part.at)
            run(f"CREATE VIRTUAL TABLE IF NOT EXISTS text_{month} USING fts5(text, content='', tokenize='{TOKENIZER}')")
            run(
                "INSERT INTO months (month, row_count) VALUES (?, 1) "
                "ON CONFLICT DO UPDATE SET row_count = row_count + 1",
                (month,),
            )
            run(f"INSERT INTO text_{month} (rowid, text) VALUES (?, ?)", (seq, kind_words(role, type_, tool) + text))

    def _session(self, part: SamplePart) -> int:
        run = self.connection.execute
        machine, client, cwd = self._name("machine-1"), self._name(part.client), self._name(part.cwd)
        run(
            "INSERT INTO sessions (session_id, machine, client, cwd, started_at, ended_at) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT DO UPDATE SET started_at = min(started_at, excluded.started_at), "
            "ended_at = max(ended_at, excluded.ended_at), parts = parts + 1",
            (part.session, machine, client, cwd, part.at, part.at),
        )
        (number,) = run("SELECT id FROM sessions WHERE session_id = ?", (part.session,)).fetchone()
        return int(number)

    def _name(self, name: str | None) -> int | None:
        if name is None:
            return None
        self.connection.execute("INSERT OR IGNORE INTO names (name) VALUES (?)", (name,))
        (number,) = self.connection.execute("SELECT id FROM names WHERE name = ?", (name,)).fetchone()
        return int(number)

    def text_tables(self, since: int | None = None, until: int | None = None) -> list[str]:
        first, last = (
            month_of(START if since is None else since),
            schema.LAST_MONTH if until is None else month_of(until),
        )
        months = self.connection.execute("SELECT month FROM months ORDER BY month DESC").fetchall()
        return [f"text_{month}" for (month,) in months if first <= month <= last]

    def close(self) -> None:
        self.connection.close()
