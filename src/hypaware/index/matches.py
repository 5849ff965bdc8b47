"""The parts whose text contains all words of a search, the best or the newest first.

While few parts match, they are ranked: the weight of each word (BM25, with the frequency of the word in all months),
times a bonus for what was said recently. Words that occur in more than `_FEW` parts do not count, because weighing
them means reading all their occurrences. If more parts match, the newest come first: sessions are searched one by one
from the newest on, because so many matches are in almost every session, and whole months if that takes too long. Beyond
`_MAX_TOTAL` matches the total is a lower bound.

Months are read from the newest on. When the time is over, the search ends with what it has found, newest first, and the
total is a lower bound.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from hypaware.index.filters import Condition, Filters, filter_rows, filter_sessions, month_of
from hypaware.index.schema import IS_FAILED
from hypaware.index.search_syntax import SearchTerm, SearchWords
from hypaware.index.time_limit import TimeLimit
from hypaware.index.tokens import KINDS, kind_word

if TYPE_CHECKING:
    from hypaware.index.store import Index

DEFAULT_LIMIT = 20
_MAX_HITS = 1 << 62
_FEW = 3000
_MAX_TOTAL = 20_000
MAX_SESSIONS = 200
"""Sessions that are tried one by one before whole months are read."""
_MAX_PAGE = 1000
"""More hits are not searched session by session."""
_GAP = 1000
_DAY = 86_400 * 1_000_000
_RECENT_DAYS = 30.0
_RECENT_BONUS = 0.5
_LEAST_WEIGHT = 1e-6
"""The weight that SQLite gives a word that is in more than half of the rows."""
_IN_ANY_ORDER = "SELECT rowid FROM {month} WHERE {month} MATCH :words"
"""SQLite reads a list of rows forwards in half of the time that it takes to read it backwards."""
MATCHES = f"{_IN_ANY_ORDER} ORDER BY rowid DESC"
# A cross join keeps its order. SQLite would begin with the rows of a session and look each of them up in the full text.
JOINED_PARTS = "CROSS JOIN parts p ON p.seq = t.rowid"
_SESSIONS = "JOIN sessions s ON s.id = p.session"


class SearchRequest(NamedTuple):
    words: SearchWords
    filters: Filters
    role: str | None = None
    tool: str | None = None
    part_type: str | None = None
    errors: bool = False
    limit: int | None = DEFAULT_LIMIT
    offset: int = 0


class FoundParts(NamedTuple):
    hits: list[int]
    total: int
    is_exact: bool = True
    is_complete: bool = True
    """False if the time was over before it was certain that these are the first hits."""
    order: str = "relevance"


class MatchFinder:
    """Finds the parts that contain all words of a request."""

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
        self._errors = request.errors
        if request.errors:
            self._condition = Condition(f"{self._condition.sql} AND {IS_FAILED}", self._condition.values)
        self._sessions = _SESSIONS if "s." in self._condition.sql else ""
        # The words for role, type and tool find the same parts as a comparison of their rows.
        self._condition_but_kinds = self._condition
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

    def find(self, now: int) -> FoundParts:
        candidates, count = self._collect()
        if count > _FEW:
            return self._find_newest(is_dense=len(candidates) == 1, least=0 if self._is_filtered else count)
        is_complete = not self._time_limit.is_over
        at = self._select(candidates)
        weights: dict[int, float] = {}
        if is_complete and at:
            # The matches of a single term have been counted.
            counts = {month: len(seqs) for month, seqs in candidates.items()} if len(self._terms) == 1 else None
            weights = self._weigh(
                {month: [seq for seq in seqs if seq in at] for month, seqs in candidates.items()}, counts
            )
        if self._time_limit.is_over:
            newest = sorted(at, key=lambda seq: (at[seq], seq), reverse=True)
            return FoundParts(newest, len(at), is_complete, is_complete, order="newest")

        def score(seq: int) -> tuple[float, int, int]:
            age = max(0.0, (now - at[seq]) / _DAY)
            return weights.get(seq, 0.0) * (1 + _RECENT_BONUS * 0.5 ** (age / _RECENT_DAYS)), at[seq], seq

        return FoundParts(sorted(at, key=score, reverse=True), len(at))

    def _collect(self) -> tuple[dict[str, list[int]], int]:
        """Return the matches of each month and their number; at most one more than can be ranked."""
        found: dict[str, list[int]] = {}
        count = 0
        for month in self._months:
            found[month] = seqs = []
            statement = f"{_IN_ANY_ORDER.format(month=month)} LIMIT :most"
            rows = self._time_limit.read(statement, {"words": self._words, "most": _FEW + 1 - count})
            if not self._is_filtered and (first := next(rows, None)) is not None:
                self._time_limit.note_result()
                seqs.append(first[0])
            seqs += [seq for (seq,) in rows]
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

    def _weigh(self, candidates: dict[str, list[int]], known: dict[str, int] | None) -> dict[int, float]:
        """Return the sum of the weights of the words in each candidate. `known` is how many rows of each month the only
        term is in."""
        sums: dict[int, float] = {}
        rows = {
            month: count
            for month in self._months
            for (count,) in self._connection.execute("SELECT row_count FROM months WHERE month = ?", (month[5:],))
        }
        for term in self._terms:
            if self._time_limit.is_over:
                break
            counts = known or self._count_term(term)
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

    def _find_newest(self, *, is_dense: bool, least: int) -> FoundParts:
        """Return the newest hits. `is_dense` says that the newest month alone has more matches than can be ranked, and
        `least` how many parts are known to match."""
        # A prefix is looked up among all words of a month each time.
        one_by_one = is_dense and not self._has_prefix and self._wanted <= _MAX_PAGE
        hits = self._try_sessions() if one_by_one else None
        if hits is None:
            hits = self._read_months(self._wanted)
        if self._wanted == _MAX_HITS:
            return FoundParts(hits, len(hits), order="newest")
        is_complete = not self._time_limit.is_over
        total = max(self._count(_MAX_TOTAL), least)
        is_exact = total <= _MAX_TOTAL and not self._time_limit.is_over
        return FoundParts(hits, max(min(total, _MAX_TOTAL), len(hits)), is_exact, is_complete, "newest")

    def _count(self, most: int) -> int:
        """Return how many parts match, at most one more than `most`."""
        total = 0
        condition = self._condition_but_kinds
        is_filtered = condition.sql != "true"
        source = f"{JOINED_PARTS} {self._sessions} WHERE {condition.sql}" if is_filtered else ""
        for month in self._months:
            values = {**condition.values, "words": self._words_of_kind, "most": most + 1 - total}
            statement = f"SELECT 1 FROM ({_IN_ANY_ORDER.format(month=month)}) t {source} LIMIT :most"
            if is_filtered:
                total += sum(1 for _ in self._time_limit.read(statement, values))
            else:
                # Faster, but nothing is known if it is ended.
                total += sum(count for (count,) in self._time_limit.read(f"SELECT count(*) FROM ({statement})", values))
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
            {**condition.values, "most": MAX_SESSIONS + 1},
        ).fetchall()
        best: list[tuple[int, int]] = []
        for session, started_at, ended_at in sessions[:MAX_SESSIONS]:
            if len(best) >= self._wanted and ended_at < best[-self._wanted][0]:
                return [seq for _, seq in reversed(best)]
            for hit in self._search_session(session, started_at, ended_at):
                insort(best, hit)
                self._time_limit.note_result()
            del best[: -self._wanted]
            if self._time_limit.is_over:
                return [seq for _, seq in reversed(best)]
        return None if len(sessions) > MAX_SESSIONS else [seq for _, seq in reversed(best)]

    def _search_session(self, session: int, started_at: int, ended_at: int) -> Iterator[tuple[int, int]]:
        first, last = (f"text_{month_of(moment)}" for moment in (started_at, ended_at))
        # Most sessions have few errors, or none: the rest of them is not searched.
        failed = f" AND {IS_FAILED}" if self._errors else ""
        rows = self._connection.execute(f"SELECT p.seq FROM parts p WHERE p.session = ?{failed}", (session,))
        seqs = [seq for (seq,) in rows]
        for begin, end in _find_runs(sorted(seqs)):
            for month in self._months:
                if first <= month <= last:
                    yield from self._time_limit.read(
                        f"SELECT p.at, p.seq FROM {month} t {JOINED_PARTS} {self._sessions} WHERE {month} MATCH :words "
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
                f"SELECT p.at, p.seq FROM ({MATCHES.format(month=month)}) t {JOINED_PARTS} {self._sessions} "
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
