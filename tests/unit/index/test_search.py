"""Search over an index: the parts that contain all words, compared with a scan of their text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypaware.errors import Cancelled, HypError, UsageError
from hypaware.index import matches
from hypaware.index import time_limit as time_limit_module
from hypaware.index.filters import Filters, to_text
from hypaware.index.schema import SPOOLED
from hypaware.index.search import find_sessions, search
from hypaware.index.tokens import kind_word
from tests.support.search_index import DAY, START, SamplePart, SearchIndex

LIMITS = [
    {},
    {"_FEW": 2},
    {"_FEW": 2, "_MAX_TOTAL": 3},
    {"_FEW": 2, "_MAX_TOTAL": 3, "MAX_SESSIONS": 1},
    {"_FEW": 0, "_MAX_TOTAL": 0, "_GAP": 0},
    {"_FEW": 0, "_MAX_TOTAL": 0, "_MAX_PAGE": 5},
]
"""Few parts, and each way to search many."""
FILTERS: list[dict[str, Any]] = [{"project": "shop"}, {"client": "claude"}]
NOW = (START + 120 * DAY) / 1e6
WORDS = st.sampled_from(["fox", "Fox", "foxes", "dog", "do", "the", "the-fox", "dog_2", "x"])
TERMS = st.one_of(
    WORDS,
    WORDS.map(lambda word: f"{word}*"),
    st.lists(WORDS, min_size=1, max_size=3).map(lambda words: f'"{" ".join(words)}"'),
)
PARTS = st.builds(
    SamplePart,
    text=st.one_of(
        st.none(),
        st.lists(st.sampled_from(["fox", "FOX", "foxes", "dog", "the", "2", "cat"]), max_size=6).map(" ".join),
    ),
    session=st.sampled_from(["one", "two", "three"]),
    at=st.integers(0, 100).map(lambda days: START + days * DAY // 2),
    role=st.sampled_from(["user", "assistant"]),
    tool=st.sampled_from([None, "Bash"]),
    tool_args=st.one_of(st.none(), st.just('{"command":"dog\\nfox"}')),
    cwd=st.sampled_from(["/home/me/shop", "/home/me/blog"]),
)


@contextmanager
def opened(parts: list[SamplePart]) -> Iterator[SearchIndex]:
    index = SearchIndex(parts)
    try:
        yield index
    finally:
        index.close()


@contextmanager
def limits(**values: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setattr(matches, name, value)
        yield


def run(index: SearchIndex, words: str, **options: Any) -> dict[str, Any]:
    return search(index, words, now=NOW, **{"time_limit": None, **options})  # type: ignore[arg-type]


def found_by(index: SearchIndex, words: str, **options: Any) -> list[int]:
    return [
        int(hit["part_id"].removeprefix("message-").removesuffix("#0")) for hit in run(index, words, **options)["hits"]
    ]


def split(text: str) -> list[str]:
    return re.findall("[a-z0-9]+", text.lower())


def contains(part: SamplePart, words: str) -> bool:
    """Tell whether the text has all terms: an implementation without SQLite."""
    arguments = re.sub(r"\\.", " ", part.tool_args or "")
    tokens = split(f"{part.text or ''}\n{arguments}")
    for phrase, word in re.findall(r'("[^"]*"\*?)|(\S+)', words):
        term = split(phrase or word)
        is_prefix = (phrase or word).endswith("*")
        places = range(len(tokens) - len(term) + 1)
        if not any(
            tokens[at : at + len(term) - 1] == term[:-1]
            and (
                tokens[at + len(term) - 1].startswith(term[-1]) if is_prefix else tokens[at + len(term) - 1] == term[-1]
            )
            for at in places
        ):
            return False
    return True


@settings(max_examples=150)
@given(
    st.lists(PARTS, max_size=25),
    st.lists(TERMS, min_size=1, max_size=3).map(" ".join),
    st.sampled_from([None, "user"]),
    st.sampled_from([None, "Bash"]),
    st.sampled_from([None, "shop"]),
    st.sampled_from([(None, None), (START + 3 * DAY, START + 40 * DAY)]),
    st.sampled_from(LIMITS),
)
def test_the_hits_are_those_of_a_scan(
    parts: list[SamplePart],
    words: str,
    role: str | None,
    tool: str | None,
    project: str | None,
    window: tuple[int | None, int | None],
    patched: dict[str, int],
) -> None:
    since, until = window
    with opened(parts) as index, limits(**patched):
        expected = {
            seq
            for seq, part in index.parts.items()
            if contains(part, words)
            and role in (None, part.role)
            and tool in (None, part.tool)
            and (project is None or part.cwd.endswith(f"/{project}"))
            and (since is None or until is None or since <= part.at <= until)
        }
        filters = Filters(project=project, since=since, until=until)

        found = run(index, words, filters=filters, role=role, tool=tool, limit=100)
        hits = found_by(index, words, filters=filters, role=role, tool=tool, limit=100)

        assert found["total_is_exact"] or "_MAX_TOTAL" in patched
        assert found["total"] == len(expected)
        assert len(hits) == len(expected)
        assert set(hits) == expected
        if found["order"] == "newest":
            assert hits == sorted(hits, key=lambda seq: (index.parts[seq].at, seq), reverse=True)


@pytest.mark.parametrize("patched", LIMITS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"role": "user"},
        {"errors": True},
        {"filters": Filters(project="shop")},
        {"filters": Filters(client="claude")},
    ],
)
def test_no_statement_looks_up_each_row_in_the_full_text(patched: dict[str, int], options: dict[str, Any]) -> None:
    parts = [SamplePart("fox", session=f"s{n % 3}", at=START + n * DAY, role="user") for n in range(40)]
    with opened(parts) as index, limits(**patched):
        statements: list[str] = []
        index.connection.set_trace_callback(statements.append)
        run(index, "fox", **options)
        find_sessions(index, "fox")  # type: ignore[arg-type]
        index.connection.set_trace_callback(None)
        joins = [each for each in statements if " MATCH " in each and "parts p" in each]
        plans = [[row["detail"] for row in index.connection.execute(f"EXPLAIN QUERY PLAN {each}")] for each in joins]

    assert joins
    for plan in plans:
        assert next(at for at, step in enumerate(plan) if "VIRTUAL TABLE" in step) < next(
            at for at, step in enumerate(plan) if step.startswith(("SEARCH p ", "SCAN p"))
        )


@given(st.lists(PARTS, max_size=25), st.integers(1, 4), st.integers(0, 5), st.sampled_from(LIMITS[1:]))
def test_pages_of_the_newest_hits_follow_each_other(
    parts: list[SamplePart], limit: int, offset: int, patched: dict[str, int]
) -> None:
    with opened(parts) as index, limits(**{**patched, "_FEW": 0}):
        matching = [seq for seq, part in index.parts.items() if contains(part, "fox")]
        matching.sort(key=lambda seq: (index.parts[seq].at, seq), reverse=True)

        assert found_by(index, "fox", limit=limit, offset=offset) == matching[offset : offset + limit]


@given(st.lists(PARTS, max_size=25), st.lists(TERMS, min_size=1, max_size=2).map(" ".join))
def test_sessions_are_found_by_words(parts: list[SamplePart], words: str) -> None:
    with opened(parts) as index:
        numbers = dict(index.connection.execute("SELECT session_id, id FROM sessions"))
        expected = {numbers[part.session] for part in parts if contains(part, words)}

        assert find_sessions(index, words) == expected  # type: ignore[arg-type]


def test_a_hit_has_the_fields_of_the_interface() -> None:
    part = SamplePart("x", tool="Bash", type="tool_call", tool_args='{"command":"make deploy"}', at=START + 5 * DAY)
    with opened([part]) as index:
        assert run(index, "deploy") == {
            "total": 1,
            "total_is_exact": True,
            "is_complete": True,
            "sessions": 1,
            "order": "relevance",
            "ignored": [],
            "hits": [
                {
                    "part_id": "message-1#0",
                    "session_id": "session-1",
                    "at": to_text(START + 5 * DAY),
                    "role": "assistant",
                    "part_type": "tool_call",
                    "tool_name": "Bash",
                    "project": "shop",
                    "client": "claude",
                    "snippet": 'x {"command": "make ⟦deploy⟧"}',
                }
            ],
        }


def test_more_occurrences_in_a_shorter_text_rank_higher() -> None:
    filler = "and so on " * 20
    with opened([SamplePart(f"fox {filler}"), SamplePart("fox fox fox"), SamplePart(f"fox fox {filler}")]) as index:
        index.add([SamplePart("nothing here")] * 10)

        assert found_by(index, "fox") == [2, 3, 1]


def test_a_rare_word_counts_more_than_a_frequent_one() -> None:
    common = [SamplePart(f"build step {n}") for n in range(50)]
    with opened([*common, SamplePart("build build build zebra"), SamplePart("build zebra zebra zebra")]) as index:
        assert found_by(index, "build zebra") == [52, 51]


def test_of_equal_matches_the_newer_one_comes_first() -> None:
    with opened([SamplePart("fox", at=START + days * DAY) for days in (90, 10, 110, 50)]) as index:
        assert found_by(index, "fox") == [3, 1, 4, 2]


def test_a_month_in_which_every_part_has_the_word_does_not_rank_last() -> None:
    """SQLite weighs a word by its frequency in one table; on the first of a month a table has few rows."""
    old = [SamplePart("other words", at=START) for _ in range(50)]
    with opened(
        [*old, SamplePart("fox in january", at=START), SamplePart("fox in may", at=START + 120 * DAY)]
    ) as index:
        assert found_by(index, "fox") == [52, 51]


def test_words_that_are_too_frequent_to_weigh_are_still_required() -> None:
    parts = [SamplePart("the cat", at=START + n * DAY) for n in range(20)]
    with opened([*parts, SamplePart("the fox"), SamplePart("fox")]) as index, limits(_FEW=5):
        assert found_by(index, "the fox") == [21]
        assert run(index, "the cat")["order"] == "newest"


def test_a_total_above_the_limit_is_a_lower_bound() -> None:
    parts = [SamplePart("fox", at=START + n * DAY, role="user" if n % 2 else "assistant") for n in range(40)]
    with opened(parts) as index, limits(_FEW=5, _MAX_TOTAL=30):
        found, filtered = run(index, "fox"), run(index, "fox", role="user")

    assert (found["total"], found["total_is_exact"]) == (30, False)
    assert (filtered["total"], filtered["total_is_exact"]) == (20, True)
    assert {hit["role"] for hit in filtered["hits"]} == {"user"}
    assert len(filtered["hits"]) == 20


def test_text_cannot_pretend_to_be_of_a_role() -> None:
    with opened([SamplePart("fox", role="user")]) as index:
        (role,) = index.connection.execute("SELECT role FROM parts").fetchone()
        index.add([SamplePart(f"fox {kind_word('role', role)}", role="assistant")])

        assert found_by(index, "fox", role="user") == [1]
        with pytest.raises(UsageError, match="no letter"):
            run(index, f"{kind_word('role', role)[0]}*")


class Clock:
    """Moves on by one second whenever it is read, up to `most` times."""

    def __init__(self, most: int = 1 << 30) -> None:
        self.reads, self._most = -1, most

    def __call__(self) -> float:
        self.reads = min(self.reads + 1, self._most)
        return float(self.reads)


@contextmanager
def checked_at_every_step() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time_limit_module, "_STEPS", 1)
        yield


@settings(max_examples=200)
@given(
    st.lists(PARTS, max_size=25),
    st.lists(TERMS, min_size=1, max_size=2).map(" ".join),
    st.integers(1, 600),
    st.sampled_from([None, "user"]),
    st.sampled_from([None, "shop"]),
    st.sampled_from(LIMITS),
)
def test_a_search_that_is_ended_early_returns_matches_and_reports_it(
    parts: list[SamplePart], words: str, seconds: int, role: str | None, project: str | None, patched: dict[str, int]
) -> None:
    options = {"filters": Filters(project=project), "role": role, "limit": 5}
    with opened(parts) as index, limits(**patched), checked_at_every_step():
        expected = {
            seq
            for seq, part in index.parts.items()
            if contains(part, words) and role in (None, part.role) and project in (None, part.cwd.rpartition("/")[2])
        }
        whole = run(index, words, **options)

        found = run(index, words, time_limit=seconds, clock=Clock(), **options)
        hits = found_by(index, words, time_limit=seconds, clock=Clock(), **options)

        assert len(set(hits)) == len(hits)
        assert set(hits) <= expected
        assert len(hits) <= found["total"] <= len(expected)
        if found["total_is_exact"]:
            assert found["total"] == len(expected)
        if found["is_complete"] and found["order"] == whole["order"]:
            assert found["hits"] == whole["hits"]
        if found["order"] == "newest":
            assert hits == sorted(hits, key=lambda seq: (index.parts[seq].at, seq), reverse=True)


def test_a_search_without_a_hit_continues_after_its_time_limit() -> None:
    parts = [SamplePart("the dog or a fox", at=START + n * DAY) for n in range(30)]
    with (
        opened([SamplePart("the fox"), SamplePart("the fox"), *parts]) as index,
        checked_at_every_step(),
    ):
        found = run(index, '"the fox"', time_limit=1, patience=1_000_000, clock=Clock())

        assert found["hits"]
        assert (found["total"], found["total_is_exact"], found["is_complete"]) == (1, False, False)


def test_a_search_without_a_hit_ends_when_patience_does() -> None:
    with (
        opened([SamplePart("the fox", at=START + n * DAY) for n in range(30)]) as index,
        checked_at_every_step(),
    ):
        clock = Clock()
        found = run(index, "fox", time_limit=1, patience=1, clock=clock)

        assert (found["hits"], found["total"], found["total_is_exact"]) == ([], 0, False)
        assert found["is_complete"] is False


@pytest.mark.parametrize("limit", [5, None])
@pytest.mark.parametrize("few", [0, 5000])
def test_a_search_whose_caller_is_gone_ends(few: int, limit: int | None) -> None:
    parts = [SamplePart("the fox", at=START + n * DAY) for n in range(30)]
    with opened(parts) as index, limits(_FEW=few), checked_at_every_step():
        asked = 0

        def is_wanted() -> bool:
            nonlocal asked
            asked += 1
            return asked < 100

        with pytest.raises(Cancelled):
            run(index, "fox", limit=limit, is_wanted=is_wanted)
        assert asked < 200, "no statement goes on"
        assert run(index, "fox", limit=limit)["total"] == 30


@settings(max_examples=100)
@given(st.lists(st.tuples(PARTS, st.booleans()), max_size=25), WORDS, st.sampled_from(LIMITS))
def test_only_errors_are_found_if_only_they_are_asked_for(
    drawn: list[tuple[SamplePart, bool]], words: str, patched: dict[str, int]
) -> None:
    with opened([replace(part, is_error=is_error) for part, is_error in drawn]) as index, limits(**patched):
        expected = {seq for seq, part in index.parts.items() if part.is_error and contains(part, words)}

        assert set(found_by(index, words, errors=True)) == expected


def test_a_search_for_all_hits_has_no_time_limit() -> None:
    with opened([SamplePart("fox", at=START + n) for n in range(100)]) as index, checked_at_every_step():
        found = run(index, "fox", limit=None, time_limit=0, clock=Clock())

        assert (len(found["hits"]), found["total_is_exact"], found["is_complete"]) == (100, True, True)


def test_statements_after_a_search_have_no_time_limit() -> None:
    with opened([SamplePart("fox", at=START + n) for n in range(100)]) as index, checked_at_every_step():
        clock = Clock()
        run(index, "fox", time_limit=0, clock=clock)
        reads = clock.reads
        index.connection.execute("SELECT count(*) FROM parts p, parts q").fetchone()

        assert clock.reads == reads


def test_a_total_is_not_exact_while_the_index_is_being_built() -> None:
    with opened([SamplePart("fox")]) as index:
        index.progress = 0.4
        found = run(index, "fox")

    assert (found["total"], found["total_is_exact"]) == (1, False)


def test_rows_of_the_spool_and_of_the_lake_are_one_session() -> None:
    with opened([SamplePart("fox", seq=5), SamplePart("fox", seq=SPOOLED + 1, at=START + DAY)]) as index:
        assert found_by(index, "fox") == [SPOOLED + 1, 5]
        with limits(_FEW=0):
            assert found_by(index, "fox") == [SPOOLED + 1, 5]


@pytest.mark.parametrize("few", [0, 5000])
def test_without_a_limit_every_hit_is_returned(few: int) -> None:
    with opened([SamplePart("fox", at=START + n) for n in range(1200)]) as index, limits(_FEW=few):
        assert len(found_by(index, "fox", limit=None)) == 1200


def test_an_unknown_name_finds_nothing() -> None:
    with opened([SamplePart("fox", tool="Bash")]) as index:
        assert run(index, "fox", tool="Bsh")["hits"] == []
        assert run(index, "fox", role="pirate")["total"] == 0
        assert run(index, "fox", filters=Filters(client="emacs"))["total"] == 0


def test_an_empty_index_has_no_hits() -> None:
    with opened([]) as index:
        assert run(index, "fox")["total"] == 0


def test_without_text_the_error_names_the_setting() -> None:
    with opened([]) as index:
        index.holds_text = False
        for call in (search, find_sessions):
            with pytest.raises(HypError, match=r"index\.text is false") as refused:
                call(index, "fox")  # type: ignore[arg-type]
            assert refused.value.repair == ("hyp config set index.text true",)


@pytest.mark.parametrize("options", [{"limit": 0}, {"limit": -1}, {"offset": -1}])
def test_invalid_limits_are_refused(options: dict[str, int]) -> None:
    with opened([]) as index, pytest.raises(UsageError):
        run(index, "fox", **options)
