"""What the index must hold, computed from the rows of the lake and the spool in plain Python, and what it does hold."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from hypaware.home import Home
from hypaware.index.blocks import read_session_contents
from hypaware.index.schema import LONG_PROMPTS, SLOT
from hypaware.index.store import Index
from hypaware.model.datasets import SEQ
from hypaware.spool.reader import read_spooled_rows
from tests.support.light_lake import read_lake

DATASET = "ai_gateway_messages"
TOKENS = ("input", "output", "cache_read", "cache_write", "reasoning")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_QUARTER = 15 * 60


def committed_rows(home: Home) -> list[dict[str, Any]]:
    return read_lake(home, DATASET) if home.catalog.exists() else []


def expected_rows(home: Home) -> list[dict[str, Any]]:
    """Return the rows that a user must see: those of the lake with a sequence, and of the spool what is not there."""
    committed = [row for row in committed_rows(home) if row[SEQ] is not None]
    parts = {(row["gateway_id"], row["part_id"]) for row in committed}
    spooled = []
    for row in read_spooled_rows(home, DATASET):
        if (row["gateway_id"], row["part_id"]) not in parts:
            parts.add((row["gateway_id"], row["part_id"]))
            spooled.append({**row, "message_created_at": datetime.fromisoformat(row["message_created_at"])})
    return committed + spooled


def assert_index_agrees(home: Home, index: Index, words: Iterable[str] = (), *, with_text: bool = True) -> None:
    rows = expected_rows(home)
    assert read_parts(index) == Counter(_describe_part(row, with_text) for row in rows)
    assert read_sessions(index) == _expected_sessions(rows, with_text)
    assert read_activity(index) == _expected_activity(rows)
    assert read_tools(index) == _expected_tools(rows)
    assert_sums_agree(index)
    for word in words:
        expected = Counter(row["part_id"] for row in rows if word in _words(row)) if with_text else Counter()
        assert find_word(index, word) == expected, word
    assert_no_orphans(index)


def read_parts(index: Index) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    rows = {row["seq"]: row for row in index.connection.execute(_PARTS)}
    for (session,) in index.connection.execute("SELECT id FROM sessions").fetchall():
        for content in read_session_contents(index, session):
            row = rows.pop(content.seq)
            arguments = None if content.tool_args is None else json.dumps(content.tool_args, sort_keys=True)
            found[
                (
                    *(row["session_id"], row["machine"], content.part_id, row["message_index"], row["part_index"]),
                    *(row["at"], row["role"], row["type"], row["tool"], row["model"], row["cwd"], row["branch"]),
                    *(bool(row["flags"] & 1), bool(row["flags"] & 2), bool(row["flags"] & 4)),
                    *(content.text, arguments, content.tool_call_id, content.tool_result_for, content.parent),
                )
            ] += 1
    assert not rows, "parts without a session"
    return found


_PARTS = """
SELECT p.seq, p.message_index, p.part_index, p.at, p.flags, s.session_id, m.name AS machine, r.name AS role,
       t.name AS type, o.name AS tool, d.name AS model, c.name AS cwd, b.name AS branch
FROM parts p JOIN sessions s ON s.id = p.session JOIN names m ON m.id = s.machine JOIN names r ON r.id = p.role
JOIN names t ON t.id = p.type LEFT JOIN names o ON o.id = p.tool LEFT JOIN names d ON d.id = p.model
LEFT JOIN names c ON c.id = p.cwd LEFT JOIN names b ON b.id = p.branch"""


def _describe_part(row: Mapping[str, Any], with_text: bool) -> tuple[Any, ...]:
    arguments = row.get("tool_args")
    previous = json.loads(row.get("previous_message_id") or "[]")
    return (
        *(row["session_id"], row["gateway_id"], row["part_id"], row["message_index"], row["part_index"]),
        *(_microseconds(row), row["role"], row["part_type"], row.get("tool_name"), row.get("model"), row.get("cwd")),
        row.get("git_branch"),
        *(bool(row.get("is_error")), row.get("provider_type") == "gateway", bool(row.get("is_sidechain"))),
        row.get("content_text") if with_text else None,
        json.dumps(json.loads(arguments), sort_keys=True) if with_text and arguments is not None else None,
        *(row.get("tool_call_id"), row.get("tool_result_for"), previous[0] if previous else None),
    )


def read_sessions(index: Index) -> dict[tuple[str, str], tuple[Any, ...]]:
    query = """SELECT s.session_id, m.name, s.started_at, s.ended_at, c.name, s.turns, s.messages, s.parts,
        s.tool_calls, s.errors, s.title FROM sessions s JOIN names m ON m.id = s.machine
        LEFT JOIN names c ON c.id = s.client"""
    return {(session, machine): tuple(rest) for session, machine, *rest in index.connection.execute(query)}


def _expected_sessions(rows: Iterable[Mapping[str, Any]], with_text: bool) -> dict[tuple[str, str], tuple[Any, ...]]:
    by_session: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        by_session[row["session_id"], row["gateway_id"]].append(row)
    found = {}
    for key, members in by_session.items():
        counted = [row for row in members if row.get("provider_type") != "gateway"]
        turns = _turns(members)
        found[key] = (
            min(map(_microseconds, members)),
            max(map(_microseconds, members)),
            members[0].get("client_name"),
            len(turns),
            len({row["message_id"] for row in counted}),
            len(counted),
            sum(row["part_type"] == "tool_call" for row in counted),
            sum(bool(row.get("is_error")) for row in counted),
            " ".join(turns[0]["content_text"].split()) if turns and with_text else None,
        )
    return found


def _turns(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the first part of each message that a person typed, in the order of the conversation."""
    first: dict[str, Mapping[str, Any]] = {}
    for row in sorted(rows, key=lambda row: (row["part_index"], row.get(SEQ) or 2**63)):
        is_text = row["role"] == "user" and row["part_type"] == "text" and bool(row["content_text"])
        is_aside = row.get("is_sidechain") or row.get("provider_type") == "gateway" or row.get("is_compact_summary")
        if is_text and not is_aside and not row["content_text"].startswith("<environment_context>"):
            first.setdefault(row["message_id"], row)
    return sorted(first.values(), key=lambda row: (_microseconds(row), row["message_index"], row["part_index"]))


def read_activity(index: Index) -> dict[tuple[Any, ...], tuple[int, ...]]:
    columns = ", ".join(f"a.{name}" for name in ("messages", "turns", "parts", "tool_calls", "errors", *TOKENS))
    query = f"""SELECT s.session_id, m.name, a.slot, d.name, c.name, {columns} FROM activity a
        JOIN sessions s ON s.id = a.session JOIN names m ON m.id = s.machine
        LEFT JOIN names d ON d.id = a.model LEFT JOIN names c ON c.id = a.cwd"""
    return {tuple(row[:5]): tuple(row[5:]) for row in map(tuple, index.connection.execute(query))}


def _expected_activity(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[Any, ...], tuple[int, ...]]:
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    turns: dict[tuple[str, str], set[int]] = {}
    rows = list(rows)
    for row in rows:
        key = (row["session_id"], row["gateway_id"])
        if key not in turns:
            members = [each for each in rows if (each["session_id"], each["gateway_id"]) == key]
            turns[key] = {id(turn) for turn in _turns(members)}
        slot = _microseconds(row) // 1_000_000 // _QUARTER
        groups[*key, slot, row.get("model"), row.get("cwd")].append(row)
    found = {}
    for key, members in groups.items():
        counted = [row for row in members if row.get("provider_type") != "gateway"]
        usage = [json.loads(row.get("attributes") or "{}").get("usage", {}) for row in members]
        found[key] = (
            len({row["message_id"] for row in counted}),
            sum(id(row) in turns[key[:2]] for row in members),
            len(counted),
            sum(row["part_type"] == "tool_call" for row in counted),
            sum(bool(row.get("is_error")) for row in counted),
            *(sum(each.get(f"{name}_tokens", 0) for each in usage) for name in TOKENS),
        )
    return found


def read_tools(index: Index) -> dict[tuple[str, str, str], tuple[int, int]]:
    query = """SELECT s.session_id, m.name, o.name, sum(t.calls), sum(t.errors) FROM tools t
        JOIN sessions s ON s.id = t.session JOIN names m ON m.id = s.machine JOIN names o ON o.id = t.tool
        GROUP BY 1, 2, 3"""
    return {tuple(row[:3]): tuple(row[3:]) for row in map(tuple, index.connection.execute(query))}


def _expected_tools(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str, str], tuple[int, int]]:
    calls: Counter[tuple[str, str, str]] = Counter()
    errors: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        if row.get("provider_type") == "gateway" or row.get("tool_name") is None:
            continue
        key = (row["session_id"], row["gateway_id"], row["tool_name"])
        calls[key] += row["part_type"] == "tool_call"
        errors[key] += row["part_type"] == "tool_result" and bool(row.get("is_error"))
    return {key: (calls[key], errors[key]) for key in calls}


def find_word(index: Index, word: str) -> Counter[str]:
    part_ids = _part_ids(index)
    found: Counter[str] = Counter()
    for table in index.text_tables():
        for (seq,) in index.connection.execute(f"SELECT rowid FROM {table} WHERE {table} MATCH ?", (f'"{word}"',)):
            found[part_ids.get(seq, "a row that does not exist")] += 1
    return found


def _part_ids(index: Index) -> dict[int, str]:
    sessions = index.connection.execute("SELECT id FROM sessions").fetchall()
    return {each.seq: each.part_id for (session,) in sessions for each in read_session_contents(index, session)}


def _words(row: Mapping[str, Any]) -> set[str]:
    text = f"{row.get('content_text') or ''} {row.get('tool_args') or ''}"
    return set(re.findall(r"\w+", text.lower()))


def assert_sums_agree(index: Index) -> None:
    """Compare the tables that are computed from others with them."""
    tokens = (*TOKENS, "cache_write_1h")
    summed = ("messages", "turns", "parts", "tool_calls", "errors", *tokens)
    prompt = "(u.input + u.cache_read + u.cache_write)"
    over = " ".join(f"WHEN {prompt} > {size} THEN {size}" for size in sorted(LONG_PROMPTS, reverse=True))
    long = f"""SELECT p.session, p.at / {SLOT}, ifnull(p.model, 0), ifnull(p.cwd, 0), CASE {over} END,
        {", ".join(f"sum(u.{name})" for name in tokens)} FROM usage u JOIN parts p ON p.seq = u.seq
        WHERE {prompt} > {min(LONG_PROMPTS)} GROUP BY 1, 2, 3, 4, 5"""
    totals = f"""SELECT session, model, cwd, min(slot), max(slot), {", ".join(f"sum({name})" for name in summed)}
        FROM activity GROUP BY 1, 2, 3"""
    stored = f"SELECT session, model, cwd, first_slot, last_slot, {', '.join(summed)} FROM totals"
    stored_long = f"SELECT session, slot, model, cwd, over, {', '.join(tokens)} FROM long_prompts"
    sums = ", ".join(f"sum({name})" for name in tokens)
    long_totals = f"""SELECT session, model, cwd, over, min(slot), max(slot), {sums} FROM long_prompts
        GROUP BY 1, 2, 3, 4"""
    stored_long_totals = (
        f"SELECT session, model, cwd, over, first_slot, last_slot, {', '.join(tokens)} FROM long_totals"
    )
    tools = "SELECT session, tool, min(slot), max(slot), sum(calls), sum(errors) FROM tools GROUP BY 1, 2"
    stored_tools = "SELECT session, tool, first_slot, last_slot, calls, errors FROM tool_totals"
    # Sessions in all, by session and cwd, and by session and model.
    starts = "SELECT session, 0, 0, sum(starts_session) FROM totals GROUP BY 1"
    starts += " UNION ALL SELECT session, 1, cwd, sum(starts_cwd) FROM totals GROUP BY 1, 3"
    starts += " UNION ALL SELECT session, 2, model, sum(starts_model) FROM totals GROUP BY 1, 3"
    once = (
        "SELECT DISTINCT session, 0, 0, 1 FROM parts UNION ALL SELECT DISTINCT session, 1, ifnull(cwd, 0), 1 FROM parts"
    )
    once += " UNION ALL SELECT DISTINCT session, 2, ifnull(model, 0), 1 FROM parts"
    # Models that have answered, and rows without a model if they have tokens.
    used = f"(p.model IS NOT NULL OR ({' | '.join(f'ifnull(u.{name}, 0)' for name in tokens)}) <> 0)"
    models = f"count(DISTINCT ifnull(p.model, 0)) FILTER (WHERE {used})"
    only = f"max(ifnull(p.model, 0)) FILTER (WHERE {used})"
    sessions = f"""SELECT p.session, CASE {models} WHEN 0 THEN 0 WHEN 1 THEN {only} ELSE -1 END,
        {", ".join(f"sum(ifnull(u.{name}, 0))" for name in tokens)}
        FROM parts p LEFT JOIN usage u ON u.seq = p.seq GROUP BY 1"""
    stored_sessions = f"SELECT id, ifnull(model, -1), {', '.join(tokens)} FROM sessions"
    for table, query in (
        (starts, once),
        (stored_sessions, sessions),
        (stored, totals),
        (stored_long, long),
        (stored_long_totals, long_totals),
        (stored_tools, tools),
    ):
        found, expected = (sorted(map(tuple, index.connection.execute(each))) for each in (table, query))
        assert found == expected
    for table in ("totals", "long_totals"):
        places = f"SELECT session, machine, client FROM {table}"
        of_sessions = f"SELECT id, machine, client FROM sessions WHERE id IN (SELECT session FROM {table})"
        of_rows, of_their_sessions = (set(map(tuple, index.connection.execute(each))) for each in (places, of_sessions))
        assert of_rows == of_their_sessions


def assert_no_orphans(index: Index) -> None:
    run = index.connection.execute
    blocks = {number for (number,) in run("SELECT id FROM blocks")}
    assert blocks == {number for (number,) in run("SELECT DISTINCT block FROM parts")}
    assert run("SELECT count(*) FROM usage WHERE seq NOT IN (SELECT seq FROM parts)").fetchone()[0] == 0
    for table in (*("activity", "totals", "long_prompts", "long_totals", "tools", "tool_totals", "parts", "usage"),):
        query = f"SELECT count(*) FROM {table} WHERE session NOT IN (SELECT id FROM sessions)"
        assert run(query).fetchone()[0] == 0, table
    for month, count in run("SELECT month, row_count FROM months").fetchall():
        assert run(f"SELECT count(*) FROM text_{month}_docsize").fetchone()[0] == count, month


def _microseconds(row: Mapping[str, Any]) -> int:
    created_at: datetime = row["message_created_at"]
    elapsed = created_at - _EPOCH
    return (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds
