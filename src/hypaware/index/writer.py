"""Write parts into the tables of the index: insert, change, remove, and compute touched sessions again.

All calls between two commits belong to one transaction, which begins with the first of them. After an error the writer
must be thrown away, because its caches may name rows that were rolled back.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby

from hypaware import faults
from hypaware.index import blocks
from hypaware.index.blocks import BlockEntry
from hypaware.index.database import write_meta
from hypaware.index.filters import month_of
from hypaware.index.parts import Part
from hypaware.index.prompts import clean_title, is_command, prompt_of
from hypaware.index.schema import (
    IS_CALL,
    IS_COUNTED,
    IS_FAILED,
    IS_LIVE,
    IS_RESULT,
    IS_TURN,
    IS_TYPED,
    LONG_PROMPTS,
    OVER,
    PROMPT_TOKENS,
    SIDECHAIN,
    SLOT_OF,
    TOKENS,
)
from hypaware.index.tokens import TOKENIZER, kind_words

_before_commit = faults.crash_point("index.write.before-commit", "rows are written to the index, not committed")
_after_commit = faults.crash_point("index.write.after-commit", "rows are committed to the index")
_COUNTS = (*TOKENS, "cache_write_1h")
_PROMPT_CHARACTERS = 400
_PROMPTS_TO_TRY = 5
_MAX_CACHED_NAMES = 200_000
_HASH_BYTES = 16 << 20
_CHUNK = 10_000
_CACHED_BLOCKS = 8
_FIGURES = f"""
    count(DISTINCT CASE WHEN {IS_COUNTED} THEN p.message END), total(p.flags & {IS_TURN}) / {IS_TURN},
    total({IS_COUNTED}), total({IS_COUNTED} AND {IS_CALL}), total({IS_COUNTED} AND {IS_FAILED})"""
_ACTIVITY = f"""
INSERT INTO activity (session, slot, model, cwd, messages, turns, parts, tool_calls, errors, {", ".join(_COUNTS)})
SELECT p.session, {SLOT_OF}, ifnull(p.model, 0), ifnull(p.cwd, 0), {_FIGURES},
       {", ".join(f"ifnull(sum(u.{name}), 0)" for name in _COUNTS)}
FROM touched t CROSS JOIN parts p ON p.session = t.session LEFT JOIN usage u ON u.seq = p.seq
GROUP BY 1, 2, 3, 4"""
_SUMMED = ("messages", "turns", "parts", "tool_calls", "errors", *_COUNTS)
_TOTALS = f"""
INSERT INTO totals (session, model, cwd, machine, client, first_slot, last_slot, {", ".join(_SUMMED)},
                    starts_session, starts_cwd, starts_model)
SELECT a.session, a.model, a.cwd, s.machine, s.client, min(a.slot), max(a.slot),
       {", ".join(f"sum(a.{name})" for name in _SUMMED)},
       row_number() OVER (PARTITION BY a.session ORDER BY a.model, a.cwd) = 1,
       row_number() OVER (PARTITION BY a.session, a.cwd ORDER BY a.model) = 1,
       row_number() OVER (PARTITION BY a.session, a.model ORDER BY a.cwd) = 1
FROM touched t CROSS JOIN sessions s ON s.id = t.session CROSS JOIN activity a ON a.session = t.session
GROUP BY 1, 2, 3"""
# The user's own messages have neither a model nor tokens.
_HAS_MODEL = f"(a.model <> 0 OR ({' | '.join(f'a.{name}' for name in _COUNTS)}) <> 0)"
_SESSION_TOKENS = f"""
UPDATE sessions SET ({", ".join(_COUNTS)}, model) = (
    SELECT {", ".join(f"sum(a.{name})" for name in _COUNTS)},
           CASE WHEN min(a.model) FILTER (WHERE {_HAS_MODEL}) = max(a.model) FILTER (WHERE {_HAS_MODEL})
                THEN max(a.model) FILTER (WHERE {_HAS_MODEL})
                WHEN count(*) FILTER (WHERE {_HAS_MODEL}) = 0 THEN 0 END
    FROM totals a WHERE a.session = sessions.id)
WHERE id IN (SELECT session FROM touched)"""
_LONG = f"""
INSERT INTO long_prompts (session, slot, model, cwd, over, {", ".join(_COUNTS)})
SELECT p.session, {SLOT_OF}, ifnull(p.model, 0), ifnull(p.cwd, 0), {OVER},
       {", ".join(f"sum(u.{name})" for name in _COUNTS)}
FROM touched t CROSS JOIN usage u ON u.session = t.session CROSS JOIN parts p ON p.seq = u.seq
WHERE {PROMPT_TOKENS} > {min(LONG_PROMPTS)} GROUP BY 1, 2, 3, 4, 5"""
_LONG_TOTALS = f"""
INSERT INTO long_totals (session, model, cwd, over, machine, client, first_slot, last_slot, {", ".join(_COUNTS)})
SELECT l.session, l.model, l.cwd, l.over, s.machine, s.client, min(l.slot), max(l.slot),
       {", ".join(f"sum(l.{name})" for name in _COUNTS)}
FROM touched t CROSS JOIN sessions s ON s.id = t.session CROSS JOIN long_prompts l ON l.session = t.session
GROUP BY 1, 2, 3, 4"""
_TOOLS = f"""
INSERT INTO tools (session, slot, tool, calls, errors)
SELECT p.session, {SLOT_OF}, p.tool, total({IS_CALL}), total({IS_RESULT} AND {IS_FAILED})
FROM touched t CROSS JOIN parts p ON p.session = t.session
WHERE p.tool IS NOT NULL AND {IS_COUNTED} AND ({IS_CALL} OR {IS_RESULT}) GROUP BY 1, 2, 3"""
_TOOL_TOTALS = """
INSERT INTO tool_totals (session, tool, first_slot, last_slot, calls, errors)
SELECT l.session, l.tool, min(l.slot), max(l.slot), sum(l.calls), sum(l.errors)
FROM touched t CROSS JOIN tools l ON l.session = t.session GROUP BY 1, 2"""
_SUMS = ("activity", "totals", "long_prompts", "long_totals", "tools", "tool_totals")
"""The tables that are computed again for a session that changes."""
_NEWEST = f"""(SELECT n.{{0}} FROM parts n WHERE n.session = t.session AND n.{{0}} IS NOT NULL
    ORDER BY (n.flags & {SIDECHAIN}), n.at DESC, n.seq DESC LIMIT 1)"""
_OLDEST_CLIENT = """(SELECT n.client FROM parts n WHERE n.session = t.session AND n.client IS NOT NULL
    ORDER BY n.at, n.seq LIMIT 1)"""
_SESSIONS = f"""
SELECT min(p.at), max(p.at), {_OLDEST_CLIENT}, {_NEWEST.format("cwd")}, {_NEWEST.format("branch")}, {_FIGURES},
       t.session
FROM touched t CROSS JOIN parts p ON p.session = t.session GROUP BY t.session"""
_TURNS = f"""
SELECT p.seq, p.block FROM parts p WHERE p.session = ? AND (p.flags & {IS_TURN}) <> 0
ORDER BY p.at, p.message_index, p.part_index, p.seq LIMIT {_PROMPTS_TO_TRY}"""


class _NameIds(dict[str | None, int | None]):
    """The ids of names, which are added to the table when they are first asked for."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__()
        self._connection = connection

    def __missing__(self, name: str | None) -> int | None:
        if name is None:
            return None
        row = self._connection.execute("SELECT id FROM names WHERE name = ?", (name,)).fetchone()
        if row is None:
            self[name] = self._connection.execute("INSERT INTO names (name) VALUES (?)", (name,)).lastrowid
        else:
            self[name] = row[0]
        return self[name]


class IndexWriter:
    def __init__(self, connection: sqlite3.Connection, *, with_text: bool) -> None:
        self.connection = connection
        self.with_text = with_text
        self._names = _NameIds(connection)
        self._sessions: dict[tuple[str, int], int] = {}
        self._months = {month for (month,) in connection.execute("SELECT month FROM months")}
        self._touched: set[int] = set()
        self._next_block = connection.execute("SELECT ifnull(max(id), 0) + 1 FROM blocks").fetchone()[0]
        connection.execute("CREATE TEMP TABLE IF NOT EXISTS touched (session INTEGER PRIMARY KEY)")

    def begin(self) -> None:
        if not self.connection.in_transaction:
            self.connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        if self._touched:
            self._recount()
        if self.connection.in_transaction:
            # Readers that have computed something from the whole index see whether it is still valid.
            write_meta(self.connection, "state", secrets.token_hex(8))
            _before_commit()
            self.connection.execute("COMMIT")
            _after_commit()

    def apply(self, parts: Sequence[Part], file: int) -> tuple[int, int]:
        """Bring the rows of a data file into the index. Return how many are new and how many have changed.

        Rows that are already there as they are only change the file that holds them.
        """
        self.begin()
        known = self._known(parts)
        moved, changed, fresh = [], [], []
        for part in parts:
            digest, holder = known.get(part.seq, (None, None))
            if digest == part.hash:
                if holder != file:
                    moved.append((file, part.seq))
                continue
            if digest is not None:
                changed.append(part.seq)
            fresh.append(part)
        self.connection.executemany("UPDATE parts SET file = ? WHERE seq = ?", moved)
        if changed:
            self.remove(changed)
        self.insert(fresh, file)
        return len(fresh) - len(changed), len(changed)

    def insert(self, parts: Sequence[Part], file: int) -> None:
        """Insert parts that are not in the index, in the order of their sequences."""
        self.begin()
        if not parts:
            return
        if len(self._names) > _MAX_CACHED_NAMES:
            self._names.clear()
        name = self._names
        rows, packed = [], []
        for members in blocks.split_into_blocks([part.size for part in parts]):
            block = self._next_block
            self._next_block += 1
            keys = blocks.pack([parts[place].keys for place in members])
            packed.append((block, keys, blocks.pack([parts[place].text_entry for place in members])))
            for place in members:
                part = parts[place]
                session = self._session_id(part)
                self._touched.add(session)
                rows.append(
                    (
                        *(part.seq, session, part.message, part.message_index, part.part_index, part.at),
                        *(name[part.role], name[part.type], name[part.tool], name[part.model], name[part.cwd]),
                        *(name[part.branch], name[part.thread], name[part.client], part.flags, file, block, part.hash),
                    )
                )
        self.connection.executemany("INSERT INTO blocks (id, keys, texts) VALUES (?, ?, ?)", packed)
        self.connection.executemany(f"INSERT INTO parts VALUES ({','.join('?' * 18)})", rows)
        used = [(part.seq, row[1], *part.usage) for part, row in zip(parts, rows, strict=True) if part.usage]
        self.connection.executemany(f"INSERT INTO usage VALUES ({','.join('?' * 8)})", used)
        if any(part.flags & IS_LIVE for part in parts):
            write_meta(self.connection, "live", 1)
        if self.with_text:
            self._insert_text(parts, [kind_words(*row[6:9]) for row in rows])

    def remove(self, seqs: Sequence[int]) -> None:
        """Remove parts with everything that the index holds of them."""
        self.begin()
        found: list[tuple[int, int, int]] = []
        kinds: dict[int, str] = {}
        for some in _chunks(seqs):
            query = """SELECT p.block, p.seq, p.at, p.session, p.role, p.type, p.tool
                FROM json_each(?) j JOIN parts p ON p.seq = j.value"""
            for block, seq, at, session, *kind in self.connection.execute(query, (json.dumps(some),)):
                found.append((block, seq, at))
                kinds[seq] = kind_words(*kind)
                self._touched.add(session)
        found.sort()
        entries: dict[int, BlockEntry] = {}
        for block, members in groupby(found, key=lambda each: each[0]):
            removed = blocks.remove_entries(self.connection, block, {seq for _, seq, _ in members})
            if self.with_text:
                entries.update((entry.seq, entry) for entry in removed)
        if self.with_text:
            self._remove_text(sorted((month_of(at), seq) for _, seq, at in found), entries, kinds)
        gone = [(seq,) for _, seq, _ in found]
        self.connection.executemany("DELETE FROM usage WHERE seq = ?", gone)
        self.connection.executemany("DELETE FROM parts WHERE seq = ?", gone)

    def rewrite_months(self, months: Collection[str]) -> None:
        """Write the full-text tables of these months again from the blocks: nothing of removed rows stays in them."""
        self.begin()
        for month in months:
            self.connection.execute(f"DROP TABLE text_{month}")
            self.connection.execute("DELETE FROM months WHERE month = ?", (month,))
        self._months.difference_update(months)
        last = -1
        query = "SELECT seq, block, at, role, type, tool FROM parts WHERE seq > ? ORDER BY seq LIMIT ?"
        while rows := self.connection.execute(query, (last, _CHUNK)).fetchall():
            last = rows[-1][0]
            wanted = {
                seq: (month, kind_words(*kind)) for seq, _, at, *kind in rows if (month := month_of(at)) in months
            }
            texts: dict[str, list[tuple[int, str]]] = {}
            for block in sorted({block for seq, block, *_ in rows if seq in wanted}):
                for entry in blocks.load_block(self.connection, block):
                    if entry.seq in wanted and (text := entry.searchable_text):
                        month, words = wanted[entry.seq]
                        texts.setdefault(month, []).append((entry.seq, words + text))
            for month, some in texts.items():
                self._add_text(month, sorted(some))

    def remove_unused_names(self) -> None:
        columns = [("sessions", name) for name in ("machine", "client", "cwd", "branch")]
        columns += [("parts", name) for name in ("role", "type", "tool", "model", "cwd", "branch", "thread", "client")]
        used = " UNION ".join(f"SELECT {column} FROM {table} WHERE {column} IS NOT NULL" for table, column in columns)
        self.begin()
        self.connection.execute(f"DELETE FROM names WHERE id NOT IN ({used})")
        self._names.clear()

    def _known(self, parts: Sequence[Part]) -> dict[int, tuple[int, int]]:
        """Return hash and file of the parts that are in the index, by sequence."""
        if not parts:
            return {}
        bounds = (parts[0].seq, parts[-1].seq)
        if not self.connection.execute("SELECT 1 FROM parts WHERE seq BETWEEN ? AND ?", bounds).fetchone():
            return {}
        query = "SELECT p.seq, p.hash, p.file FROM json_each(?) j JOIN parts p ON p.seq = j.value"
        seqs = json.dumps([part.seq for part in parts])
        return {seq: (digest, file) for seq, digest, file in self.connection.execute(query, (seqs,))}

    def _session_id(self, part: Part) -> int:
        machine = self._names[part.machine]
        assert machine is not None
        key = (part.session_id, machine)
        if (found := self._sessions.get(key)) is None:
            query = "SELECT id FROM sessions WHERE session_id = ? AND machine = ?"
            row = self.connection.execute(query, key).fetchone()
            if row is None:
                insert = "INSERT INTO sessions (session_id, machine) VALUES (?, ?)"
                found = self.connection.execute(insert, key).lastrowid
            else:
                found = row[0]
            assert found is not None
            self._sessions[key] = found
        return found

    def _insert_text(self, parts: Sequence[Part], kinds: Sequence[str]) -> None:
        by_month: dict[str, list[tuple[int, str]]] = {}
        for part, words in zip(parts, kinds, strict=True):
            if part.text:
                by_month.setdefault(part.month, []).append((part.seq, words + part.text))
        for month, texts in by_month.items():
            self._add_text(month, texts)

    def _add_text(self, month: str, texts: Sequence[tuple[int, str]]) -> None:
        if month not in self._months:
            self.connection.execute(
                f"CREATE VIRTUAL TABLE text_{month} USING fts5(text, content='', tokenize='{TOKENIZER}')"
            )
            self.connection.execute(f"INSERT INTO text_{month}(text_{month}, rank) VALUES ('hashsize', {_HASH_BYTES})")
            self.connection.execute("INSERT INTO months (month, row_count) VALUES (?, 0)", (month,))
            self._months.add(month)
        self.connection.executemany(f"INSERT INTO text_{month}(rowid, text) VALUES (?, ?)", texts)
        self.connection.execute("UPDATE months SET row_count = row_count + ? WHERE month = ?", (len(texts), month))

    def _remove_text(
        self, members: Iterable[tuple[str, int]], entries: dict[int, BlockEntry], kinds: dict[int, str]
    ) -> None:
        for month, group in groupby(members, key=lambda each: each[0]):
            texts = [(seq, kinds[seq] + text) for _, seq in group if (text := entries[seq].searchable_text)]
            if not texts:
                continue
            self.connection.executemany(
                f"INSERT INTO text_{month}(text_{month}, rowid, text) VALUES ('delete', ?, ?)", texts
            )
            self.connection.execute(
                "UPDATE months SET row_count = row_count - ?, removed = removed + ? WHERE month = ?",
                (len(texts), len(texts), month),
            )

    def _recount(self) -> None:
        """Compute the touched sessions again from their parts."""
        run = self.connection.execute
        run("DELETE FROM touched")
        self.connection.executemany("INSERT INTO touched VALUES (?)", [(session,) for session in self._touched])
        self._mark_turns()
        for table in _SUMS:
            run(f"DELETE FROM {table} WHERE session IN (SELECT session FROM touched)")
        figures = run(_SESSIONS).fetchall()
        cached: dict[int, dict[int, str | None]] = {}
        titles = [(clean_title(self._read_prompt(session, cached)), session) for *_, session in figures]
        self.connection.executemany(
            "UPDATE sessions SET started_at = ?, ended_at = ?, client = ?, cwd = ?, branch = ?,"
            " messages = ?, turns = ?, parts = ?, tool_calls = ?, errors = ? WHERE id = ?",
            figures,
        )
        self.connection.executemany("UPDATE sessions SET title = ? WHERE id = ?", titles)
        empty = self._touched.difference(session for *_, session in figures)
        if empty:
            self.connection.executemany("DELETE FROM sessions WHERE id = ?", [(session,) for session in empty])
            self._sessions = {key: session for key, session in self._sessions.items() if session not in empty}
        # After the sessions: the totals hold their clients.
        for statement in (_ACTIVITY, _TOTALS, _SESSION_TOKENS, _LONG, _LONG_TOTALS, _TOOLS, _TOOL_TOTALS):
            run(statement)
        self._touched = set()

    def _mark_turns(self) -> None:
        query = f"""SELECT p.session, p.message, p.seq, p.flags
            FROM touched t CROSS JOIN parts p ON p.session = t.session
            WHERE (p.flags & {IS_TYPED}) <> 0 ORDER BY p.session, p.message, p.part_index, p.seq"""
        previous, changes = None, []
        for session, message, seq, flags in self.connection.execute(query):
            expected = flags | IS_TURN if (session, message) != previous else flags & ~IS_TURN
            if flags != expected:
                changes.append((expected, seq))
            previous = (session, message)
        self.connection.executemany("UPDATE parts SET flags = ? WHERE seq = ?", changes)

    def _read_prompt(self, session: int, cached: dict[int, dict[int, str | None]]) -> str | None:
        """Return the beginning of the first prompt that is not a command, or else of the first command.

        `cached` holds the texts of the last blocks: the prompts of many sessions are in one of them.
        """
        if not self.with_text:
            return None
        command = None
        for seq, block in self.connection.execute(_TURNS, (session,)).fetchall():
            if block not in cached:
                if len(cached) == _CACHED_BLOCKS:
                    del cached[next(iter(cached))]
                cached[block] = {entry.seq: entry.text for entry in blocks.load_block(self.connection, block)}
            text = (cached[block][seq] or "").strip()
            if text and not is_command(text):
                return text[:_PROMPT_CHARACTERS]
            command = command or prompt_of(text)[:_PROMPT_CHARACTERS] or None
        return command


def _chunks(seqs: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(seqs), _CHUNK):
        yield seqs[start : start + _CHUNK]
