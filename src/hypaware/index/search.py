"""Search: the parts whose text contains all words, the best or the newest first.

While few parts match, they are ranked: the weight of each word (BM25, with the frequency of the word in all months),
times a bonus for what was said recently. Words that occur in more than `_FEW` parts do not count, because weighing
them means reading all their occurrences. If more parts match, the newest come first, and months are read from the
newest on until there are enough. Beyond `_MAX_TOTAL` matches the total is a lower bound, and sessions are tried one by
one from the newest on: so many matches are in almost every session.
"""

from __future__ import annotations

import json
import math
import time
from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypaware.errors import HypError, UsageError
from hypaware.index.blocks import PartContent, read_contents
from hypaware.index.filters import Condition, Filters, filter_rows, filter_sessions, project_of, to_text
from hypaware.index.parts import month_of
from hypaware.index.search_syntax import SearchTerm, SearchWords, parse_words
from hypaware.index.snippets import make_snippets
from hypaware.index.tokens import SEPARATOR, prepare_text
from hypaware.text import did_you_mean, escape_cell

if TYPE_CHECKING:
    from hypaware.index.store import Index

DEFAULT_LIMIT = 20
_MAX_HITS = 1 << 62
_FEW = 5000
_MAX_TOTAL = 100_000
_COUNTED = 20_000
"""Of more matches than `_MAX_TOTAL`, so many are compared with the filters to count them."""
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
_MATCHES = "SELECT rowid FROM {month} WHERE {month} MATCH ?"
_PARTS = "JOIN parts p ON p.seq = t.rowid"
_SESSIONS = "JOIN sessions s ON s.id = p.session"


@dataclass(frozen=True, kw_only=True)
class SearchRequest:
    words: SearchWords
    filters: Filters
    role: str | None = None
    tool: str | None = None
    part_type: str | None = None
    limit: int | None = DEFAULT_LIMIT
    offset: int = 0


@dataclass(frozen=True)
class _Found:
    hits: list[int]
    total: int
    is_exact: bool = True
    order: str = "relevance"


def search(
    index: Index,
    words: str,
    filters: Filters | None = None,
    *,
    role: str | None = None,
    tool: str | None = None,
    part_type: str | None = None,
    limit: int | None = DEFAULT_LIMIT,
    offset: int = 0,
    now: float | None = None,
) -> dict[str, Any]:
    """Return `{total, total_is_exact, order, ignored, hits: […]}`, at most `limit` hits from `offset` on.

    The matches of a hit are marked in its `snippet` by `⟦` and `⟧`, which are nowhere else in it. `ignored` are words
    without letters and digits. Raise UsageError if the words cannot be parsed, HypError if the index holds no text.
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
        limit=limit,
        offset=offset,
    )
    moment = int((time.time() if now is None else now) * 1e6)
    found = _Search(index, request).find(moment)
    hits = found.hits[offset : None if limit is None else offset + limit]
    return {
        "total": found.total,
        # Rows of an index that is being built may be missing.
        "total_is_exact": found.is_exact and index.progress is None,
        "order": found.order,
        "ignored": list(parsed.ignored),
        "hits": [
            hit for start in range(0, len(hits), 500) for hit in _describe(index, parsed, hits[start : start + 500])
        ],
    }


def find_sessions(index: Index, words: str) -> set[int]:
    """Return the sessions (`sessions.id`) in which one part contains all words, for `hyp sessions --grep`."""
    parsed = parse_words(words)
    check_text(index)
    found: set[int] = set()
    for month in index.text_tables():
        rows = index.connection.execute(
            f"SELECT DISTINCT p.session FROM {month} t JOIN parts p ON p.seq = t.rowid WHERE {month} MATCH ?",
            (parsed.all_of,),
        )
        found.update(session for (session,) in rows)
    return found


class _Search:
    def __init__(self, index: Index, request: SearchRequest) -> None:
        self._connection = connection = index.connection
        self._words = request.words
        self._filters = request.filters
        self._wanted = _MAX_HITS if request.limit is None else request.offset + request.limit
        self._months = index.text_tables(request.filters.since, request.filters.until)
        self._condition = self._add_names(filter_rows(connection, request.filters), request)
        self._is_filtered = self._condition.sql != "true"
        self._sessions = _SESSIONS if "s." in self._condition.sql else ""

    def _add_names(self, condition: Condition, request: SearchRequest) -> Condition:
        sql, values = condition.sql, dict(condition.values)
        for column, given in (("role", request.role), ("tool", request.tool), ("type", request.part_type)):
            if given is not None:
                row = self._connection.execute("SELECT id FROM names WHERE name = ?", (given,)).fetchone()
                values[f"only_{column}"] = -1 if row is None else row[0]
                sql = f"{'' if sql == 'true' else f'{sql} AND '}p.{column} = :only_{column}"
        return Condition(sql, values)

    def find(self, now: int) -> _Found:
        counts = dict(zip(self._months, self._count_months(_MAX_TOTAL + 1, "true"), strict=False))
        if (count := sum(counts.values())) > _FEW:
            return self._find_newest(count)
        candidates = {
            month: [seq for (seq,) in self._connection.execute(_MATCHES.format(month=month), (self._words.all_of,))]
            for month in self._months
            if counts[month]
        }
        at = self._select(candidates)
        weights = self._weigh({month: [seq for seq in seqs if seq in at] for month, seqs in candidates.items()})

        def score(seq: int) -> tuple[float, int, int]:
            age = max(0.0, (now - at[seq]) / _DAY)
            return weights.get(seq, 0.0) * (1 + _RECENT_BONUS * 0.5 ** (age / _RECENT_DAYS)), at[seq], seq

        return _Found(sorted(at, key=score, reverse=True), len(at))

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
        for term in self._words.terms:
            counts = self._count_term(term)
            if counts is None:
                continue
            weight = _inverse_frequency(sum(rows.values()), sum(counts.values()))
            for month, seqs in candidates.items():
                if seqs:
                    in_month = _inverse_frequency(rows[month], counts[month])
                    for seq, rank in self._rank(month, term, seqs):
                        sums[seq] = sums.get(seq, 0.0) - rank / in_month * weight
        return sums

    def _rank(self, month: str, term: SearchTerm, seqs: list[int]) -> Iterator[tuple[int, float]]:
        wanted = set(seqs)
        rows = self._connection.execute(
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
            (counts[month],) = self._connection.execute(statement, (term.expression, room)).fetchone()
            room -= counts[month]
            if not room:
                return None
        return counts

    def _find_newest(self, count: int) -> _Found:
        if count <= _MAX_TOTAL:
            hits = self._read_months(_MAX_HITS if self._is_filtered else self._wanted)
            return _Found(hits, len(hits) if self._is_filtered else count, order="newest")
        # A prefix is looked up among all words of a month each time.
        hits_of_sessions = None if self._words.has_prefix or self._wanted > _MAX_PAGE else self._try_sessions()
        hits = self._read_months(self._wanted) if hits_of_sessions is None else hits_of_sessions
        total = sum(self._count_months(_COUNTED, self._condition.sql)) if self._is_filtered else _MAX_TOTAL
        return _Found(hits, max(total, len(hits)), is_exact=False, order="newest")

    def _count_months(self, most: int, condition: str) -> Iterator[int]:
        """Yield how many of the first `most` matches of the words meet the condition, month by month."""
        for month in self._months:
            matches = f"SELECT rowid FROM {month} WHERE {month} MATCH :words LIMIT :most"
            values = {**self._condition.values, "words": self._words.all_of, "most": most}
            (read,) = self._connection.execute(f"SELECT count(*) FROM ({matches})", values).fetchone()
            if condition == "true":
                yield read
            else:
                joined = f"SELECT count(*) FROM ({matches}) t {_PARTS} {self._sessions} WHERE {condition}"
                yield self._connection.execute(joined, values).fetchone()[0]
            most -= read
            if not most:
                return

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
            del best[: -self._wanted]
        return None if len(sessions) > _MAX_SESSIONS else [seq for _, seq in reversed(best)]

    def _search_session(self, session: int, started_at: int, ended_at: int) -> Iterator[tuple[int, int]]:
        first, last = (f"text_{month_of(moment)}" for moment in (started_at, ended_at))
        seqs = [seq for (seq,) in self._connection.execute("SELECT seq FROM parts WHERE session = ?", (session,))]
        for begin, end in _find_runs(sorted(seqs)):
            for month in self._months:
                if first <= month <= last:
                    rows = self._connection.execute(
                        f"SELECT p.at, p.seq FROM {month} t {_PARTS} {self._sessions} WHERE {month} MATCH :words "
                        f"AND t.rowid BETWEEN :begin AND :end AND p.session = :session AND {self._condition.sql}",
                        {
                            **self._condition.values,
                            "words": self._words.all_of,
                            "begin": begin,
                            "end": end,
                            "session": session,
                        },
                    )
                    yield from ((at, seq) for at, seq in rows)

    def _read_months(self, most: int) -> list[int]:
        """Return the newest hits, at most this many, from all matches of as many months as that takes."""
        best: list[int] = []
        for month in self._months:
            rows = self._connection.execute(
                f"SELECT p.seq FROM {month} t {_PARTS} {self._sessions} WHERE {month} MATCH :words "
                f"AND {self._condition.sql} ORDER BY p.at DESC, p.seq DESC LIMIT :most",
                {**self._condition.values, "words": self._words.all_of, "most": most - len(best)},
            )
            best += [seq for (seq,) in rows]
            if len(best) >= most:
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


def explain_unknown_name(index: Index, kind: str, name: str) -> str | None:
    """Return that no part has this role, tool or type, with the nearest that exists; None if the name is known."""
    if index.connection.execute("SELECT 1 FROM names WHERE name = ?", (name,)).fetchone():
        return None
    known: list[str] = list(_KNOWN.get(kind, ()))
    if kind == "tool":
        tools = "SELECT name FROM names WHERE id IN (SELECT DISTINCT tool FROM tools) ORDER BY name"
        known = [escape_cell(tool) for (tool,) in index.connection.execute(tools)]
    return f"no recorded part has the {kind} {escape_cell(name)}.{did_you_mean(name, known, or_all=len(known) <= 20)}"


def check_text(index: Index) -> None:
    """Raise HypError if the index holds no text."""
    if index.connection.execute("SELECT 1 FROM meta WHERE key = 'text' AND value = 0").fetchone():
        raise HypError(
            "the index holds no text, because index.text is false in the config, so nothing can be searched",
            kind="no_text",
            repair="hyp config set index.text true",
        )
