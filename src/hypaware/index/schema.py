"""The tables of `index.db`. A change here is a new `VERSION`; an index of another version is built again.

Every row of `ai_gateway_messages` with a sequence is one row of `parts`, under that sequence. Rows that are still in
the spool have no sequence yet: they are numbered from `SPOOLED` on and replaced when their segment is committed.
Moments are microseconds since 1970 (UTC), and `slot` is a quarter of an hour (`at // SLOT`), so that the days of every
time zone can be added up from slots. Columns that refer to `names` say so. Counts and sums by slot (`activity`,
`long_prompts`, `tools`), their sums over all slots of a session (`totals`, `long_totals`, `tool_totals`) and the
columns of `sessions` are computed again for each session that changes; nothing is ever added up in place.

`blocks` holds what only the display of a session needs, as zstd-compressed JSON (see `hypaware.index.blocks`).
`text_<month>` are FTS5 tables without content, one per month of the rows; their rowid is the sequence, and
the role, the type and the tool of a part are words before its text (see `hypaware.index.tokens`). Rows from before
`FIRST_MONTH` or after `LAST_MONTH`, which only a wrong clock writes, are in the tables of those months.
"""

from __future__ import annotations

import sqlite3
from typing import Any

VERSION = 8
APPLICATION_ID = 0x68797069
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
SPOOLED = 1 << 62
SLOT = 15 * 60 * 1_000_000

IS_ERROR = 1
OFF_CONVERSATION = 2
"""`provider_type` is gateway: counts of messages and parts leave the row out, its tokens count."""
SIDECHAIN = 4
COMPACT_SUMMARY = 8
IS_TURN = 16
"""The first part of something that the user typed: a turn begins here."""
IS_TYPED = 32
"""A part that the user typed. The first one of a message has IS_TURN."""
IS_LIVE = 64
"""Recorded by the gateway and not yet settled by the native row of the same part."""
FIRST_MONTH = "201501"
LAST_MONTH = "209912"

LONG_PROMPTS = (100_000, 200_000, 272_000)
"""Providers charge more for a response whose prompt has more tokens than one of these."""
DATASET = "ai_gateway_messages"

# SQL conditions and values over a row p of `parts` and a row u of `usage`.
IS_COUNTED = f"(p.flags & {OFF_CONVERSATION}) = 0"
IS_CALL = "p.type = (SELECT id FROM names WHERE name = 'tool_call')"
IS_RESULT = "p.type = (SELECT id FROM names WHERE name = 'tool_result')"
IS_FAILED = f"(p.flags & {IS_ERROR}) <> 0"
# Integer division rounds towards zero, also before 1970.
SLOT_OF = f"((p.at - CASE WHEN p.at < 0 THEN {SLOT - 1} ELSE 0 END) / {SLOT})"
PROMPT_TOKENS = "(u.input + u.cache_read + u.cache_write)"
_OVER = " ".join(f"WHEN {PROMPT_TOKENS} > {size} THEN {size}" for size in sorted(LONG_PROMPTS, reverse=True))
OVER = f"CASE {_OVER} END"
"""The largest of LONG_PROMPTS that the prompt exceeds."""

TOKENS = ("input", "output", "cache_read", "cache_write", "reasoning")
_TOKEN_COLUMNS = ", ".join(f"{name} INTEGER NOT NULL DEFAULT 0" for name in TOKENS)
_SUMS = f"messages, parts, tool_calls, {', '.join(TOKENS)}, cache_write_1h"

TABLES = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID",
    "CREATE TABLE names (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    # The data files of the lake whose rows are indexed. Paths are relative to the warehouse, so a home can be moved.
    # row_groups is the number of row groups that are indexed, NULL if that is all of them.
    """CREATE TABLE files (
        id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, min_seq INTEGER, max_seq INTEGER,
        row_count INTEGER NOT NULL, row_groups INTEGER, manifest INTEGER)""",
    # The manifests whose files are all indexed. They never change, so they are not read again.
    "CREATE TABLE manifests (id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE)",
    # The segments of the spool that are indexed, by the name that they had while they were active. The row with the
    # number n of a segment is indexed under SPOOLED | id << 32 | n.
    """CREATE TABLE segments (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, inode INTEGER NOT NULL, read_bytes INTEGER NOT NULL,
        read_lines INTEGER NOT NULL)""",
    # machine, client, cwd and branch are names; cwd and branch are the newest ones of the main thread.
    # title is the beginning of the first turn. turns, messages, parts and tool_calls count rows of the conversation.
    # Tokens are those of all models. model is the name of the only model, 0 if there is none, NULL if there are
    # several, whose tokens are in `totals`.
    f"""CREATE TABLE sessions (
        id INTEGER PRIMARY KEY, session_id TEXT NOT NULL, machine INTEGER NOT NULL, client INTEGER, cwd INTEGER,
        branch INTEGER, started_at INTEGER, ended_at INTEGER, title TEXT, turns INTEGER NOT NULL DEFAULT 0,
        messages INTEGER NOT NULL DEFAULT 0, parts INTEGER NOT NULL DEFAULT 0, tool_calls INTEGER NOT NULL DEFAULT 0,
        errors INTEGER NOT NULL DEFAULT 0, model INTEGER, {_TOKEN_COLUMNS}, cache_write_1h INTEGER NOT NULL DEFAULT 0,
        UNIQUE (session_id, machine))""",
    # With the start, so that the sessions of each day are counted from here.
    "CREATE INDEX sessions_by_end ON sessions (ended_at, started_at)",
    # message is a 64-bit hash of message_id; thread (conversation_id or agent_id), client, role, type, tool, model, cwd
    # and branch are names. file is the data file that holds the row (0 for a row of the spool), block the block that
    # holds its content, hash a hash of everything that is indexed of it.
    """CREATE TABLE parts (
        seq INTEGER PRIMARY KEY, session INTEGER NOT NULL, message INTEGER NOT NULL, message_index INTEGER NOT NULL,
        part_index INTEGER NOT NULL, at INTEGER NOT NULL, role INTEGER NOT NULL, type INTEGER NOT NULL, tool INTEGER,
        model INTEGER, cwd INTEGER, branch INTEGER, thread INTEGER, client INTEGER, flags INTEGER NOT NULL,
        file INTEGER NOT NULL, block INTEGER NOT NULL, hash INTEGER NOT NULL)""",
    "CREATE INDEX parts_by_session ON parts (session)",
    # Token counts of the rows that carry them (one per response). cache_write_1h is the part of cache_write that is
    # kept for an hour and costs more.
    f"""CREATE TABLE usage (
        seq INTEGER PRIMARY KEY, session INTEGER NOT NULL, {_TOKEN_COLUMNS},
        cache_write_1h INTEGER NOT NULL DEFAULT 0)""",
    "CREATE INDEX usage_by_session ON usage (session)",
    # Tokens are those of `usage`; model and cwd are names, 0 if the rows have none. errors counts rows with is_error.
    f"""CREATE TABLE activity (
        session INTEGER NOT NULL, slot INTEGER NOT NULL, model INTEGER NOT NULL, cwd INTEGER NOT NULL,
        messages INTEGER NOT NULL, turns INTEGER NOT NULL, parts INTEGER NOT NULL, tool_calls INTEGER NOT NULL,
        errors INTEGER NOT NULL, {_TOKEN_COLUMNS}, cache_write_1h INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (session, model, cwd, slot)) WITHOUT ROWID""",
    # With the messages, so that activity by hour and day is counted from here.
    "CREATE INDEX activity_by_slot ON activity (slot, messages)",
    # The sums of `activity` over all slots of a session, model and cwd. Most sessions are of one day, so most questions
    # can be answered from here. machine and client are those of the session. Sessions are counted by adding up the
    # columns starts_…: each is 1 in one row of a session, of a session and cwd, and of a session and model, else 0.
    f"""CREATE TABLE totals (
        session INTEGER NOT NULL, model INTEGER NOT NULL, cwd INTEGER NOT NULL, machine INTEGER NOT NULL,
        client INTEGER, first_slot INTEGER NOT NULL, last_slot INTEGER NOT NULL, messages INTEGER NOT NULL,
        turns INTEGER NOT NULL, parts INTEGER NOT NULL, tool_calls INTEGER NOT NULL, errors INTEGER NOT NULL,
        {_TOKEN_COLUMNS}, cache_write_1h INTEGER NOT NULL DEFAULT 0, starts_session INTEGER NOT NULL,
        starts_cwd INTEGER NOT NULL, starts_model INTEGER NOT NULL,
        PRIMARY KEY (session, model, cwd)) WITHOUT ROWID""",
    # In this order, and with all that is added up, SQLite adds up by machine, client, folder and model without sorting.
    f"""CREATE INDEX totals_by_place ON totals (
        machine, client, cwd, model, {_SUMS}, starts_session, starts_cwd, starts_model)""",
    # In this order, the sums of a day are those of a range.
    f"CREATE INDEX totals_by_time ON totals (model, first_slot, last_slot, {_SUMS})",
    # The part of `activity` that is due to responses with a long prompt; over is the largest of LONG_PROMPTS that the
    # prompt exceeds.
    f"""CREATE TABLE long_prompts (
        session INTEGER NOT NULL, slot INTEGER NOT NULL, model INTEGER NOT NULL, cwd INTEGER NOT NULL,
        over INTEGER NOT NULL, {_TOKEN_COLUMNS}, cache_write_1h INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (session, model, cwd, over, slot)) WITHOUT ROWID""",
    f"""CREATE TABLE long_totals (
        session INTEGER NOT NULL, model INTEGER NOT NULL, cwd INTEGER NOT NULL, over INTEGER NOT NULL,
        machine INTEGER NOT NULL, client INTEGER, first_slot INTEGER NOT NULL, last_slot INTEGER NOT NULL,
        {_TOKEN_COLUMNS}, cache_write_1h INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (session, model, cwd, over)) WITHOUT ROWID""",
    """CREATE TABLE tools (
        session INTEGER NOT NULL, slot INTEGER NOT NULL, tool INTEGER NOT NULL, calls INTEGER NOT NULL,
        errors INTEGER NOT NULL, PRIMARY KEY (session, tool, slot)) WITHOUT ROWID""",
    """CREATE TABLE tool_totals (
        session INTEGER NOT NULL, tool INTEGER NOT NULL, first_slot INTEGER NOT NULL, last_slot INTEGER NOT NULL,
        calls INTEGER NOT NULL, errors INTEGER NOT NULL, PRIMARY KEY (session, tool)) WITHOUT ROWID""",
    "CREATE INDEX tool_totals_by_tool ON tool_totals (tool, calls, errors)",
    "CREATE TABLE blocks (id INTEGER PRIMARY KEY, keys BLOB NOT NULL, texts BLOB NOT NULL)",
    # removed counts rows whose words may still be in the pages of the month's table.
    """CREATE TABLE months (
        month TEXT PRIMARY KEY, row_count INTEGER NOT NULL, removed INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID""",
)


def read_meta(connection: sqlite3.Connection, key: str) -> Any:
    found = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return found[0] if found else None


def write_meta(connection: sqlite3.Connection, key: str, value: str | int | None) -> None:
    connection.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (key, value))


def progress_of(connection: sqlite3.Connection) -> float | None:
    """Return the part of the lake's rows that is indexed, or None if all of them are."""
    missing, rows = (read_meta(connection, key) or 0 for key in ("missing", "rows"))
    return max(0.0, 1 - missing / rows) if missing and rows else None


def is_current(connection: sqlite3.Connection, *, with_text: bool | None = None) -> bool:
    """Return whether this is an index of this version, and with these settings if given. Raise on damage."""
    ((version,),) = connection.execute("PRAGMA user_version")
    ((application,),) = connection.execute("PRAGMA application_id")
    if (version, application) != (VERSION, APPLICATION_ID):
        return False
    return with_text is None or read_meta(connection, "text") == int(with_text)


def is_damage(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE
