"""Search: the parts whose text contains all words, the best or the newest first.

While few parts match, they are ranked: the weight of each word (BM25, with the frequency of the word in all months),
times a bonus for what was said recently. Words that occur in more than `_FEW` parts do not count, because weighing
them means reading all their occurrences. If more parts match, the newest come first: sessions are searched one by one
from the newest on, because so many matches are in almost every session, and whole months if that takes too long. Beyond
`_MAX_TOTAL` matches the total is a lower bound.

A search has a time limit. Months are read from the newest on, and within a month the rows that were recorded last come
first. When the time is over, the search ends with what it has found, newest first, and the total is a lower bound. If
it has found nothing yet, it goes on to the first match, or to `_PATIENCE` times the limit.
"""

from __future__ import annotations

import heapq
import json
import math
import time
from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypaware.errors import HypError, UsageError
from hypaware.index.blocks import PartContent, read_contents
from hypaware.index.filters import Condition, Filters, filter_rows, filter_sessions, project_of, to_text
from hypaware.index.parts import month_of
from hypaware.index.schema import IS_FAILED
from hypaware.index.search_syntax import SearchTerm, SearchWords, parse_words
from hypaware.index.snippets import make_snippets
from hypaware.index.time_limit import TimeLimit
from hypaware.index.tokens import KINDS, SEPARATOR, kind_word, prepare_text
from hypaware.text import did_you_mean, escape_cell

if TYPE_CHECKING:
    from sqlite3 import Connection

    from hypaware.index.store import Index

DEFAULT_LIMIT = 20
_MAX_HITS = 1 << 62
TIME_LIMIT = 0.05
"""Seconds for counting and ranking. Reading the hits themselves comes on top."""
_PATIENCE = 20
_FEW = 5000
_MAX_TOTAL = 20_000
_MAX_SESSIONS = 200
"""Sessions that are tried one by one before whole months are read."""
_MAX_PAGE = 1000
"""More hits are not searched session by session."""
_GAP = 1000
_DAY = 86_400 * 1_000_000
_RECENT_DAYS = 30.0
_RECENT_BONUS = 0.5
_LEAST_WEIGHT = 1e-6
"""The weight that SQLite gives a word that is in more than half of the rows."""
_KNOWN = {
    "role": ("user", "assistant", "tool", "system"),
    "type": ("text", "reasoning", "tool_call", "tool_result", "image", "file", "error", "usage"),
}
_MATCHES = "SELECT rowid FROM {month} WHERE {month} MATCH :words ORDER BY rowid DESC"
_PARTS = "JOIN parts p ON p.seq = t.rowid"
_SESSIONS = "JOIN sessions s ON s.id = p.session"


@dataclass(frozen=True, kw_only=True)
class SearchRequest:
    words: SearchWords
    filters: Filters
    role: str | None = None
    tool: str | None = None
    part_type: str | None = None
    errors: bool = False
    limit: int | None = DEFAULT_LIMIT
    offset: int = 0


@dataclass(frozen=True)
class _Found:
    hits: list[int]
    total: int
    is_exact: bool = True
    is_complete: bool = True
    """False if the time was over before it was certain that these are the first hits."""
    order: str = "relevance"


def search(
    index: Index,
    words: str,
    filters: Filters | None = None,
    *,
    role: str | None = None,
    tool: str | None = None,
    part_type: str | None = None,
    errors: bool = False,
    limit: int | None = DEFAULT_LIMIT,
    offset: int = 0,
    time_limit: float | None = TIME_LIMIT,
    patience: float | None = None,
    now: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Return `{total, total_is_exact, is_complete, sessions, order, ignored, hits: […]}`, at most `limit` hits.

    `errors` keeps only failed tool results and other errors. `sessions` is the number of sessions that contain the
    matches, None if there are too many to count. The matches of a hit are marked in its `snippet` by `⟦` and `⟧`, which
    are nowhere else in it. `ignored` are words without letters and digits. After `time_limit` seconds the search ends
    with what it has found, and if that is nothing, after `patience` times as long; `is_complete` is then False. Without
    `limit` or `time_limit` it goes on to the end. Raise UsageError if the words cannot be parsed, HypError if the index
    holds no text.
    """
    if (limit is not None and limit < 1) or offset < 0:
        raise UsageError(f"the limit must be at least 1 and the offset at least 0, not {limit} and {offset}")
    parsed = parse_words(words)
    check_text(index)
    request = SearchRequest(
        words=parsed,
        filters=filters or Filters(),
        role=role,
        tool=tool,
        part_type=part_type,
        errors=errors,
        limit=limit,
        offset=offset,
    )
    moment = int((time.time() if now is None else now) * 1e6)
    seconds = None if limit is None else time_limit
    with TimeLimit(index.connection, seconds, _PATIENCE if patience is None else patience, clock) as time_left:
        found = _Search(index, request, time_left).find(moment)
    hits = found.hits[offset : None if limit is None else offset + limit]
    return {
        "total": found.total,
        # Rows of an index that is being built may be missing.
        "total_is_exact": found.is_exact and index.progress is None,
        "is_complete": found.is_complete,
        "sessions": _count_sessions(index.connection, found),
        "order": found.order,
        "ignored": list(parsed.ignored),
        "hits": [
            hit for start in range(0, len(hits), 500) for hit in _describe(index, parsed, hits[start : start + 500])
        ],
    }


def _count_sessions(connection: Connection, found: _Found) -> int | None:
    """Return how many sessions the matches are in, if all of them are known."""
    if not found.is_exact or len(found.hits) != found.total:
        return None
    statement = "SELECT count(DISTINCT session) FROM parts WHERE seq IN (SELECT value FROM json_each(?))"
    (count,) = connection.execute(statement, (json.dumps(found.hits),)).fetchone()
    return int(count)


def find_sessions(index: Index, words: str) -> set[int]:
    """Return the sessions (`sessions.id`) in which one part contains all words, for `hyp sessions --grep`."""
    return find_sessions_within(index, words, None)[0]


def find_sessions_within(
    index: Index, words: str, seconds: float | None, clock: Callable[[], float] = time.monotonic
) -> tuple[set[int], bool]:
    """Return the sessions of `find_sessions` that are found in this time, and whether that are all.

    The rows that were recorded last are searched first.
    """
    parsed = parse_words(words)
    check_text(index)
    found: set[int] = set()
    with TimeLimit(index.connection, seconds, _PATIENCE, clock) as time_left:
        for month in index.text_tables():
            matches = f"SELECT DISTINCT p.session FROM ({_MATCHES.format(month=month)}) t CROSS {_PARTS}"
            for (session,) in time_left.read(matches, {"words": parsed.all_of}):
                found.add(session)
                time_left.note_result()
            if time_left.is_over:
                break
    return found, not time_left.is_over


class _Search:
    def __init__(self, index: Index, request: SearchRequest, time_limit: TimeLimit) -> None:
        self._connection = connection = index.connection
        self._time_limit = time_limit
        self._terms = request.words.terms
        self._has_prefix = request.words.has_prefix
        self._filters = request.filters
        self._wanted = _MAX_HITS if request.limit is None else request.offset + request.limit
        self._months = index.text_tables(request.filters.since, request.filters.until)
        self._condition = filter_rows(connection, request.filters)
        if index.hides_sessions and self._condition.sql == "true":
            # The words of hidden sessions are in the full text, but their parts are not seen.
            self._condition = Condition("p.seq IS NOT NULL", self._condition.values)
        if request.errors:
            self._condition = Condition(f"{self._condition.sql} AND {IS_FAILED}", self._condition.values)
        self._sessions = _SESSIONS if "s." in self._condition.sql else ""
        self._words = self._words_of_kind = request.words.all_of
        for kind, given in zip(KINDS, (request.role, request.part_type, request.tool), strict=True):
            if given is not None:
                self._add_kind(kind, given)
        self._is_filtered = self._condition.sql != "true"

    def _add_kind(self, kind: str, given: str) -> None:
        """Keep only parts of this role, type or tool.

        A few matches are compared with their row. If there are many, the kind is one more word: both lists of rows are
        read from their beginning, which is fast only if the one or the other is read nearly as a whole.
        """
        row = self._connection.execute("SELECT id FROM names WHERE name = ?", (given,)).fetchone()
        number = -1 if row is None else int(row[0])
        self._words_of_kind += f' AND "{kind_word(kind, number)}"'
        self._condition = Condition(f"{self._condition.sql} AND p.{kind} = {number}", self._condition.values)

    def find(self, now: int) -> _Found:
        candidates, count = self._collect()
        if count > _FEW:
            return self._find_newest(is_dense=len(candidates) == 1)
        is_complete = not self._time_limit.is_over
        at = self._select(candidates)
        weights: dict[int, float] = {}
        if is_complete:
            weights = self._weigh({month: [seq for seq in seqs if seq in at] for month, seqs in candidates.items()})
        if self._time_limit.is_over:
            newest = sorted(at, key=lambda seq: (at[seq], seq), reverse=True)
            return _Found(newest, len(at), is_complete, is_complete, order="newest")

        def score(seq: int) -> tuple[float, int, int]:
            age = max(0.0, (now - at[seq]) / _DAY)
            return weights.get(seq, 0.0) * (1 + _RECENT_BONUS * 0.5 ** (age / _RECENT_DAYS)), at[seq], seq

        return _Found(sorted(at, key=score, reverse=True), len(at))

    def _collect(self) -> tuple[dict[str, list[int]], int]:
        """Return the matches of each month, newest first, and their number; at most one more than can be ranked."""
        found: dict[str, list[int]] = {}
        count = 0
        for month in self._months:
            found[month] = seqs = []
            statement = f"{_MATCHES.format(month=month)} LIMIT :most"
            for (seq,) in self._time_limit.read(statement, {"words": self._words, "most": _FEW + 1 - count}):
                seqs.append(seq)
                if not self._is_filtered:
                    self._time_limit.note_result()
            count += len(seqs)
            if count > _FEW or self._time_limit.is_over:
                break
        return found, count

    def _select(self, candidates: dict[str, list[int]]) -> dict[int, int]:
        """Return the moments of the candidates that match the filters."""
        found: dict[int, int] = {}
        for seqs in candidates.values():
            for start in range(0, len(seqs), 500):
                some = ", ".join(map(str, seqs[start : start + 500]))
                found.update(
                    self._connection.execute(
                        f"SELECT p.seq, p.at FROM parts p {self._sessions} "
                        f"WHERE p.seq IN ({some}) AND {self._condition.sql}",
                        self._condition.values,
                    ).fetchall()
                )
        return found

    def _weigh(self, candidates: dict[str, list[int]]) -> dict[int, float]:
        """Return the sum of the weights of the words in each candidate."""
        sums: dict[int, float] = {}
        rows = {
            month: count
            for month in self._months
            for (count,) in self._connection.execute("SELECT row_count FROM months WHERE month = ?", (month[5:],))
        }
        for term in self._terms:
            if self._time_limit.is_over:
                break
            counts = self._count_term(term)
            if counts is None:
                continue
            weight = _inverse_frequency(sum(rows.values()), sum(counts.values()))
            for month, seqs in candidates.items():
                if seqs and not self._time_limit.is_over:
                    in_month = _inverse_frequency(rows[month], counts[month])
                    for seq, rank in self._rank(month, term, seqs):
                        sums[seq] = sums.get(seq, 0.0) - rank / in_month * weight
        return sums

    def _rank(self, month: str, term: SearchTerm, seqs: list[int]) -> Iterator[tuple[int, float]]:
        wanted = set(seqs)
        rows = self._time_limit.read(
            f"SELECT rowid, bm25({month}) FROM {month} WHERE {month} MATCH ? AND rowid BETWEEN ? AND ?",
            (term.expression, min(seqs), max(seqs)),
        )
        return ((seq, rank) for seq, rank in rows if seq in wanted)

    def _count_term(self, term: SearchTerm) -> dict[str, int] | None:
        """Return in how many rows of each month the term is; None if there are too many to weigh it."""
        counts: dict[str, int] = {}
        room = _FEW + 1
        for month in self._months:
            statement = f"SELECT count(*) FROM (SELECT 1 FROM {month} WHERE {month} MATCH ? LIMIT ?)"
            counts[month] = sum(count for (count,) in self._time_limit.read(statement, (term.expression, room)))
            room -= counts[month]
            if not room or self._time_limit.is_over:
                return None
        return counts

    def _find_newest(self, *, is_dense: bool) -> _Found:
        """Return the newest hits. `is_dense` says that the newest month alone has more matches than can be ranked."""
        # A prefix is looked up among all words of a month each time.
        one_by_one = is_dense and not self._has_prefix and self._wanted <= _MAX_PAGE
        hits = self._try_sessions() if one_by_one else None
        if hits is None:
            hits = self._read_months(self._wanted)
        if self._wanted == _MAX_HITS:
            return _Found(hits, len(hits), order="newest")
        is_complete = not self._time_limit.is_over
        total = self._count(_MAX_TOTAL)
        is_exact = total <= _MAX_TOTAL and not self._time_limit.is_over
        return _Found(hits, max(min(total, _MAX_TOTAL), len(hits)), is_exact, is_complete, "newest")

    def _count(self, most: int) -> int:
        """Return how many parts match, at most one more than `most`."""
        total = 0
        source = f"{_PARTS} {self._sessions} WHERE {self._condition.sql}" if self._is_filtered else ""
        for month in self._months:
            values = {**self._condition.values, "words": self._words_of_kind, "most": most + 1 - total}
            statement = f"SELECT 1 FROM ({_MATCHES.format(month=month)}) t {source} LIMIT :most"
            total += sum(1 for _ in self._time_limit.read(statement, values))
            if total > most or self._time_limit.is_over:
                break
        return total

    def _try_sessions(self) -> list[int] | None:
        """Search session by session, newest first; None if that takes too long.

        No row of a session is later than its end, so the search can stop at a session that ended before the worst hit.
        """
        condition = filter_sessions(self._connection, self._filters)
        sessions = self._connection.execute(
            f"SELECT s.id, s.started_at, s.ended_at FROM sessions s WHERE {condition.sql} "
            "ORDER BY s.ended_at DESC LIMIT :most",
            {**condition.values, "most": _MAX_SESSIONS + 1},
        ).fetchall()
        best: list[tuple[int, int]] = []
        for session, started_at, ended_at in sessions[:_MAX_SESSIONS]:
            if len(best) >= self._wanted and ended_at < best[-self._wanted][0]:
                return [seq for _, seq in reversed(best)]
            for hit in self._search_session(session, started_at, ended_at):
                insort(best, hit)
                self._time_limit.note_result()
            del best[: -self._wanted]
            if self._time_limit.is_over:
                return [seq for _, seq in reversed(best)]
        return None if len(sessions) > _MAX_SESSIONS else [seq for _, seq in reversed(best)]

    def _search_session(self, session: int, started_at: int, ended_at: int) -> Iterator[tuple[int, int]]:
        first, last = (f"text_{month_of(moment)}" for moment in (started_at, ended_at))
        seqs = [seq for (seq,) in self._connection.execute("SELECT seq FROM parts WHERE session = ?", (session,))]
        for begin, end in _find_runs(sorted(seqs)):
            for month in self._months:
                if first <= month <= last:
                    yield from self._time_limit.read(
                        f"SELECT p.at, p.seq FROM {month} t {_PARTS} {self._sessions} WHERE {month} MATCH :words "
                        f"AND t.rowid BETWEEN :begin AND :end AND p.session = :session AND {self._condition.sql}",
                        {
                            **self._condition.values,
                            "words": self._words,
                            "begin": begin,
                            "end": end,
                            "session": session,
                        },
                    )

    def _note_each(self, rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        for row in rows:
            self._time_limit.note_result()
            yield row

    def _read_months(self, most: int) -> list[int]:
        """Return the newest hits, at most this many, from all matches of as many months as that takes."""
        best: list[int] = []
        for month in self._months:
            statement = (
                f"SELECT p.at, p.seq FROM ({_MATCHES.format(month=month)}) t CROSS {_PARTS} {self._sessions} "
                f"WHERE {self._condition.sql}"
            )
            rows = self._time_limit.read(statement, {**self._condition.values, "words": self._words_of_kind})
            best += [seq for _, seq in heapq.nlargest(most - len(best), self._note_each(rows))]
            if len(best) >= most or self._time_limit.is_over:
                break
        return best


def _find_runs(seqs: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the ranges that cover the sequences, without large gaps."""
    begin = None
    for at, seq in enumerate(seqs):
        begin = seq if begin is None else begin
        if at + 1 == len(seqs) or seqs[at + 1] - seq > _GAP:
            yield begin, seq
            begin = None


def _inverse_frequency(rows: int, matches: int) -> float:
    """Return the weight of a word as SQLite computes it in bm25()."""
    weight = math.log((rows - matches + 0.5) / (matches + 0.5)) if matches <= rows else 0.0
    return weight if weight > 0 else _LEAST_WEIGHT


def _describe(index: Index, words: SearchWords, hits: list[int]) -> list[dict[str, Any]]:
    rows = {
        row["seq"]: row
        for row in index.connection.execute(
            f"""SELECT p.seq, p.at, s.session_id, role.name AS role, type.name AS part_type, tool.name AS tool_name,
            cwd.name AS cwd, client.name AS client
            FROM parts p JOIN sessions s ON s.id = p.session LEFT JOIN names role ON role.id = p.role
            LEFT JOIN names type ON type.id = p.type LEFT JOIN names tool ON tool.id = p.tool
            LEFT JOIN names cwd ON cwd.id = coalesce(p.cwd, s.cwd) LEFT JOIN names client ON client.id = s.client
            WHERE p.seq IN ({", ".join(map(str, hits))})"""
        )
    }
    contents = read_contents(index, hits)
    snippets = make_snippets(words, {seq: _join_text(content) for seq, content in contents.items()})
    return [
        {
            "part_id": contents[seq].part_id,
            "session_id": row["session_id"],
            "at": to_text(row["at"]),
            "role": row["role"],
            "part_type": row["part_type"],
            "tool_name": row["tool_name"],
            "project": project_of(row["cwd"]),
            "client": row["client"],
            "snippet": snippets[seq],
        }
        for seq in hits
        if (row := rows.get(seq)) is not None and seq in contents
    ]


def _join_text(content: PartContent) -> str:
    arguments = None if content.tool_args is None else json.dumps(content.tool_args, ensure_ascii=False)
    return (prepare_text(content.text, arguments) or "").replace(SEPARATOR, "")


def list_tools(index: Index, most: int) -> list[str]:
    """Return the names of the tools that were called most in the newest sessions."""
    rows = index.connection.execute(
        f"""SELECT names.name FROM (SELECT tool, sum(calls) AS calls FROM tools WHERE session IN (
              SELECT id FROM sessions ORDER BY ended_at DESC LIMIT {_MAX_SESSIONS}) GROUP BY tool) t
            JOIN names ON names.id = t.tool ORDER BY t.calls DESC, names.name LIMIT ?""",
        (most,),
    )
    return [name for (name,) in rows]


def explain_unknown_name(index: Index, kind: str, name: str) -> str | None:
    """Return that no part has this role, tool or type, with the nearest that exists; None if the name is known."""
    if index.connection.execute("SELECT 1 FROM names WHERE name = ?", (name,)).fetchone():
        return None
    known: list[str] = list(_KNOWN.get(kind, ()))
    if kind == "tool":
        tools = "SELECT name FROM names WHERE id IN (SELECT DISTINCT tool FROM tools) ORDER BY name"
        known = [escape_cell(tool) for (tool,) in index.connection.execute(tools)]
    hint = "" if name in known else did_you_mean(name, known, or_all=len(known) <= 20)
    return f"no recorded part has the {kind} {escape_cell(name)}.{hint}"


def check_text(index: Index) -> None:
    """Raise HypError if the index holds no text."""
    if index.connection.execute("SELECT 1 FROM meta WHERE key = 'text' AND value = 0").fetchone():
        raise HypError(
            "the index holds no text, because index.text is false in the config, so nothing can be searched",
            kind="no_text",
            repair="hyp config set index.text true",
        )
