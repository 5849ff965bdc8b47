"""A database of OpenCode: the sample, changes as the client makes them, and imports with their checkpoints."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hypaware.backfill.source_rows import ImportContext, SourcePiece, SourceReport
from hypaware.backfill.survey import pin_source
from hypaware.clients.reader import TimeWindow
from hypaware.follow.source_recorder import _SourceResult
from hypaware.model.datasets import Row
from hypaware.model.schemas import AI_GATEWAY_MESSAGES
from hypaware.state.flushes import SourceCheckpoint
from tests.support.history import readable

SAMPLE = Path(__file__).parents[1] / "fixtures" / "opencode" / "1.18.33" / "opencode.sql"
TIME = int(datetime.now(UTC).timestamp() * 1000) - 1000
"""A moment ago, in milliseconds: what changed long before the database is not held back."""


def make_database(folder: Path, *, with_sample: bool = True) -> Path:
    """Make a database with the client's tables and journal mode."""
    path = folder / "opencode.db"
    statements = SAMPLE.read_text().splitlines()
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        kept = statements if with_sample else [each for each in statements if not each.startswith("INSERT")]
        database.executescript("\n".join(kept))
    return path


@dataclass
class Client:
    """Changes a database as the client does, over a connection that stays open."""

    path: Path
    database: sqlite3.Connection = field(init=False)

    def __post_init__(self) -> None:
        self.database = sqlite3.connect(self.path, isolation_level=None)
        self.database.execute("PRAGMA wal_autocheckpoint = 0")

    def close(self) -> None:
        self.database.close()

    def add_session(self, key: str, parent: str | None = None, **more: Any) -> None:
        facts = {
            "id": key,
            "project_id": "p",
            "parent_id": parent,
            "slug": "s",
            "directory": "/nonexistent/shop",
            "title": "New session - now",
            "version": "1.18.33",
            "time_created": TIME,
            "time_updated": TIME,
            **more,
        }
        names = ", ".join(facts)
        self.database.execute(
            f"INSERT INTO session ({names}) VALUES ({', '.join('?' * len(facts))})", [*facts.values()]
        )

    def put_message(self, key: str, session: str, at: int, **data: Any) -> None:
        values = (key, session, at, at, json.dumps({"time": {"created": at}, **data}))
        self.database.execute("INSERT OR REPLACE INTO message VALUES (?, ?, ?, ?, ?)", values)

    def put_part(self, key: str, message: str, session: str, at: int, **data: Any) -> None:
        values = (key, message, session, at, at, json.dumps(data))
        self.database.execute("INSERT OR REPLACE INTO part VALUES (?, ?, ?, ?, ?, ?)", values)

    def ask(self, key: str, session: str, at: int, text: str) -> None:
        self.put_message(key, session, at, role="user")
        self.put_part(f"{key}-p", key, session, at, type="text", text=text)


@dataclass
class Importer:
    """Imports one database repeatedly, with its checkpoint."""

    path: Path
    checkpoint: SourceCheckpoint | None = None
    rows: list[Row] = field(default_factory=list)
    window: TimeWindow = field(default_factory=TimeWindow)
    quiet: bool = False

    def run(self) -> list[Row] | None:
        """Return the rows of one import; None if the database is not due."""
        now = datetime.now(UTC) + (timedelta(days=1) if self.quiet else timedelta())
        snapshot = pin_source(self.path, self.path.stat(), self.checkpoint, self.window, now)
        if snapshot is None:
            return None
        context = ImportContext("opencode", "ai_gateway_messages", {"HOME": "/nonexistent"}, "gateway-1")
        result = _SourceResult()
        rows = [row for _, row in SourcePiece(context, 1, snapshot.size, snapshot).rows(AI_GATEWAY_MESSAGES, result)]
        (self.report,) = result.reports
        assert isinstance(self.report, SourceReport)
        self.checkpoint = self.report.checkpoint or self.checkpoint
        self.rows += map(readable, rows) if self.report.checkpoint else []
        return [readable(row) for row in rows]

    def held(self) -> set[str]:
        return set(self.checkpoint.held) if self.checkpoint else set()

    def texts(self) -> list[str] | None:
        rows = self.run()
        return None if rows is None else [row.get("content_text") or row["part_type"] for row in rows]


def count(path: Path) -> tuple[Counter[tuple[str, str]], Counter[str]]:
    """Return (role, kind of part) → count, and the sums of tokens, computed naively from the tables."""
    parts, tokens = Counter[tuple[str, str]](), Counter[str]()
    kinds = {"text": "text", "reasoning": "reasoning", "tool": "tool_call"}
    with closing(sqlite3.connect(path)) as database:
        for data, role in database.execute(
            "SELECT p.data, json_extract(m.data, '$.role') FROM part p JOIN message m ON m.id = p.message_id"
        ):
            part = json.loads(data)
            if part["type"] in kinds:
                parts[role, kinds[part["type"]]] += 1
            if part["type"] == "tool":
                parts["tool", "tool_result"] += 1
        for (data,) in database.execute("SELECT data FROM message"):
            message = json.loads(data)
            parts["assistant", "error"] += "error" in message
            if used := message.get("tokens"):
                tokens["input_tokens"] += used["input"]
                tokens["output_tokens"] += used["output"] + used["reasoning"]
                tokens["reasoning_tokens"] += used["reasoning"]
                tokens["cache_read_tokens"] += used["cache"]["read"]
                tokens["total_tokens"] += used.get("total", 0)
    return +parts, +tokens
