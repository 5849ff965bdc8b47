"""An index that hides sessions: nothing of them is found, whatever is asked."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypaware.errors import HypError
from hypaware.home import Home
from hypaware.index import schema
from hypaware.index.blocks import read_session_contents
from hypaware.index.filters import Filters, explain_no_match
from hypaware.index.overview import summarize_overview
from hypaware.index.prices import load_prices
from hypaware.index.search import find_sessions, search
from hypaware.index.sessions import find_session, list_sessions, shorten_ids
from hypaware.index.store import Index, open_index
from hypaware.index.usage import summarize_usage
from tests.support.index_home import make_home, prompt, response
from tests.support.light_home import append

USED = {"input_tokens": 10, "output_tokens": 5}


def _rows(session: str, first: int, folder: str, words: str) -> list[dict[str, object]]:
    common = {"session_id": session, "cwd": folder}
    return [
        prompt(first, words, at=f"2026-11-15T08:{first:02}:00Z", **common),
        response(first + 1, at=f"2026-11-15T08:{first + 1:02}:00Z", usage=USED, content_text=words, **common),
    ]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    seen, hidden = _rows("aa-seen", 1, "/w/shop", "open shop"), _rows("aa-hidden", 3, "/w/vault", "open vault")
    return make_home(tmp_path / "home", *seen, *hidden)


def find_vault(connection: sqlite3.Connection) -> list[int]:
    query = "SELECT s.id FROM sessions s JOIN names n ON n.id = s.cwd WHERE n.name = '/w/vault'"
    return [number for (number,) in connection.execute(query)]


@pytest.fixture
def index(home: Home) -> Iterator[Index]:
    with open_index(home, find_hidden=find_vault) as index:
        yield index


def test_every_table_of_sessions_is_replaced_by_a_view(index: Index) -> None:
    find = "SELECT id FROM main.sessions WHERE session_id = 'aa-hidden'"
    ((number,),) = index.connection.execute(find)
    listed = "SELECT name FROM main.sqlite_master WHERE type = 'table' AND sql NOT LIKE '%fts5%'"
    tables = [name for (name,) in index.connection.execute(listed)]
    for table in tables:
        columns = {row[1] for row in index.connection.execute(f"PRAGMA main.table_info({table})")}
        if column := {"sessions": "id"}.get(table, "session" if "session" in columns else ""):
            assert index.connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] or table in (
                "long_prompts",
                "long_totals",
                "tools",
                "tool_totals",
            )
            query = f"SELECT count(*) FROM {table} WHERE {column} = ?"
            assert index.connection.execute(query, (number,)).fetchone()[0] == 0, table
    assert index.hides_sessions


def test_lists_counts_and_sums_leave_hidden_sessions_out(index: Index) -> None:
    prices = load_prices(index.home)
    assert [row["session_id"] for row in list_sessions(index, Filters(), prices)] == ["aa-seen"]
    overview = summarize_overview(index, Filters(), prices)
    assert (overview["totals"]["sessions"], overview["totals"]["input_tokens"]) == (1, 10)
    assert [row["cwd"] for row in overview["projects"]] == ["/w/shop"]
    usage = summarize_usage(index, Filters(), prices, by="session")
    assert [row["key"] for row in usage["rows"] if row["sessions"]] == ["aa-seen"]
    assert usage["total"]["sessions"] == 1


def test_search_finds_and_counts_nothing_of_hidden_sessions(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    assert search(index, "vault")["total"] == 0
    assert search(index, "open")["total"] == 2
    assert len(find_sessions(index, "open")) == 1
    # As with many matches, which are counted in another way.
    monkeypatch.setattr("hypaware.index.matches._FEW", 0)
    found = search(index, "open")
    assert (found["total"], {hit["session_id"] for hit in found["hits"]}) == (2, {"aa-seen"})
    nothing = search(index, "vault")
    assert (nothing["total"], nothing["hits"]) == (0, [])
    monkeypatch.setattr("hypaware.index.matches._MAX_TOTAL", 0)
    assert (search(index, "open")["total"], search(index, "vault")["total"]) == (2, 0)


def test_a_hidden_session_is_not_even_near(index: Index) -> None:
    assert find_session(index, "aa") == find_session(index, "aa-seen")
    with pytest.raises(HypError) as error:
        find_session(index, "aa-hidden")
    assert "aa-hidden" not in error.value.message.replace("starts with aa-hidden", "")
    assert shorten_ids(index, ["aa-seen"]) == {"aa-seen": "aa-seen"}
    explained = explain_no_match(index.connection, Filters(project="vaul"))
    assert explained
    assert "vault" not in explained


def test_the_content_of_a_hidden_session_is_not_read(home: Home) -> None:
    with open_index(home) as index:
        (number,) = find_vault(index.connection)
        assert len(list(read_session_contents(index, number))) == 2
    with open_index(home, find_hidden=find_vault) as index:
        assert list(read_session_contents(index, number)) == []


def test_sessions_are_hidden_after_a_refresh_too(home: Home) -> None:
    with open_index(home, find_hidden=find_vault) as index:
        append(home, _rows("new-hidden", 5, "/w/vault", "another vault"))
        index.refresh()
        query = "SELECT session_id FROM sessions"
        assert [row[0] for row in index.connection.execute(query)] == ["aa-seen"]
        assert index.connection.execute("SELECT count(*) FROM main.sessions").fetchone()[0] == 3


def test_nothing_is_replaced_if_nothing_is_hidden(home: Home) -> None:
    with open_index(home, find_hidden=lambda _connection: ()) as index:
        assert not index.hides_sessions
        assert index.connection.execute("SELECT count(*) FROM sqlite_temp_master").fetchone()[0] == 0
        with pytest.raises(sqlite3.OperationalError):
            index.connection.execute("CREATE TEMP TABLE t (a)")


def test_a_connection_that_hides_is_still_read_only(index: Index) -> None:
    with pytest.raises(sqlite3.OperationalError):
        index.connection.execute("DELETE FROM main.sessions")


def test_all_tables_with_a_session_are_known() -> None:
    """A new table that holds something of a session must be hidden too."""
    from hypaware.index.store import _SESSION_COLUMNS

    with_session = {
        statement.split("(")[0].split()[2]
        for statement in schema.TABLES
        if statement.startswith("CREATE TABLE") and "session INTEGER" in statement
    }
    assert with_session == set(_SESSION_COLUMNS) - {"sessions"}
