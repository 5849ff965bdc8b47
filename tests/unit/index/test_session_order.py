"""The order of sessions: SQLite's order by cost and tokens is that of the figures, and pages follow each other."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from hypaware.index.filters import Filters
from hypaware.index.prices import read_prices
from hypaware.index.session_order import SessionKey, find_key, order_sessions
from hypaware.index.sessions import read_sessions, sum_tokens
from hypaware.index.store import open_index
from hypaware.index.usage import summarize_usage
from tests.support.index_home import HAIKU, OPUS, SONNET, index_of, make_home, response
from tests.support.light_home import append

PRICES = read_prices()
MODELS = (OPUS, SONNET, HAIKU, "claude-sonnet-4-5", "unknown-1", "unknown-2", None)


def make_rows(seed: int, sessions: int) -> list[dict[str, Any]]:
    """Return sessions with any models, some without tokens, and prompts that are charged as long ones."""
    choose = random.Random(seed)
    rows = []
    for number in range(4 * sessions):
        tokens = {
            "input_tokens": choose.choice((0, 10, 150_000, 250_000, 400_000)),
            "output_tokens": choose.choice((0, 1, 20_000)),
            "cache_read_tokens": choose.choice((0, 90_000)),
            "cache_write_tokens": choose.choice((0, 5000)),
        }
        rows.append(
            response(
                number,
                at=f"2026-11-{choose.randrange(1, 15):02}T08:{choose.randrange(60):02}:00Z",
                session_id=f"s{choose.randrange(sessions)}",
                usage=tokens if choose.random() < 0.6 else None,
                model=choose.choice(MODELS),
            )
        )
    return rows


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("sort", ["cost", "tokens", "length", "time"])
def test_the_order_is_that_of_the_figures(tmp_path: Path, sort: str, seed: int) -> None:
    with index_of(tmp_path, *make_rows(seed, 25)) as index:
        numbers = order_sessions(index, Filters(), PRICES, sort=sort)
        found = list(read_sessions(index, numbers, PRICES).values())
        newest = order_sessions(index, Filters(), PRICES)

    sizes: dict[str, list[float]] = {
        "cost": [-1.0 if each["cost_usd"] is None else each["cost_usd"] for each in found],
        "tokens": [sum_tokens(each["tokens"]) for each in found],
        "length": [each["messages"] for each in found],
        "time": [0.0] * len(found),
    }
    # Of the same size, the newest comes first.
    assert sorted(numbers) == sorted(newest)
    places = [(-round(size, 5), newest.index(number)) for size, number in zip(sizes[sort], numbers, strict=True)]
    assert places == sorted(places)


@pytest.mark.parametrize("seed", range(5))
def test_usage_with_a_limit_is_the_beginning_of_the_whole(tmp_path: Path, seed: int) -> None:
    with index_of(tmp_path, *make_rows(seed, 25)) as index:
        whole = summarize_usage(index, Filters(), PRICES, by="session")
        for limit in range(1, 27):
            found = summarize_usage(index, Filters(), PRICES, by="session", limit=limit)
            assert found == {**whole, "rows": whole["rows"][:limit]}


@pytest.mark.parametrize("sort", ["cost", "tokens", "length"])
def test_pages_by_offset_are_the_whole_order(tmp_path: Path, sort: str) -> None:
    with index_of(tmp_path, *make_rows(9, 23)) as index:
        whole = order_sessions(index, Filters(), PRICES, sort=sort)
        pages = [order_sessions(index, Filters(), PRICES, sort=sort, limit=5, offset=at) for at in range(0, 30, 5)]

    assert [number for page in pages for number in page] == whole


def test_pages_by_key_contain_each_session_once_while_others_arrive(tmp_path: Path) -> None:
    # Sessions that end at the same moment are told apart by their numbers.
    at = "2026-11-14T08:00:00Z"
    home = make_home(tmp_path, *(response(number, at=at, session_id=f"s{number:02}") for number in range(23)))
    with open_index(home) as index:
        expected = order_sessions(index, Filters(), PRICES)
    found: list[int] = []
    key: SessionKey | None = None
    for arrival in range(100, 110):
        with open_index(home) as index:
            page = order_sessions(index, Filters(), PRICES, limit=5, before=key)
            if not page:
                break
            found += page
            key = find_key(index, page[-1])
        new = response(arrival, at="2026-11-15T08:00:00Z", session_id=f"new-{arrival}")
        goes_on = response(200 + arrival, at="2026-11-15T09:00:00Z", session_id=f"s{22 - (arrival - 100):02}")
        append(home, [new, goes_on])

    assert found == expected


def test_without_any_price_the_newest_come_first(tmp_path: Path) -> None:
    rows = [
        response(n, at=f"2026-11-{n + 1:02}T08:00:00Z", session_id=f"s{n}", model="new", usage={"output_tokens": 9 - n})
        for n in range(3)
    ]
    with index_of(tmp_path, *rows) as index:
        numbers = order_sessions(index, Filters(), PRICES, sort="cost")
        assert numbers == order_sessions(index, Filters(), PRICES)
