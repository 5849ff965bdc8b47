"""`compare_index` finds every kind of difference between index and lake, and none where there is none."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from hypaware.home import Home
from hypaware.index import blocks
from hypaware.index.comparison import compare_counts, compare_index
from hypaware.index.refresh import refresh_index
from hypaware.state.home_opener import open_home
from tests.support.edited_lake import add_file, stored_row
from tests.support.light_home import append
from tests.support.rows import rows

Tamper = Callable[[sqlite3.Connection], object]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    gateway = open_home(home).gateway_id
    add_file(home, [stored_row(number, each, gateway) for number, each in enumerate(rows(30), 1)])
    refresh_index(home)
    return home


def _change_text(connection: sqlite3.Connection) -> None:
    for (block,) in connection.execute("SELECT id FROM blocks").fetchall():
        entries = blocks.load_block(connection, block)
        texts = blocks.pack(blocks.encode_text(f"{entry.text}!", entry.tool_args) for entry in entries)
        connection.execute("UPDATE blocks SET texts = ? WHERE id = ?", (texts, block))


TAMPERED: dict[str, tuple[Tamper, str]] = {
    "missing": (lambda db: db.execute("DELETE FROM parts WHERE seq = 7"), "sequence 7 is missing"),
    "extra": (lambda db: db.execute("UPDATE parts SET seq = 4711 WHERE seq = 7"), "1 rows that the lake does not have"),
    "text": (_change_text, "sequence 1 differs"),
    "counts": (lambda db: db.execute("UPDATE sessions SET messages = 29"), "the lake has 30, 0 and 30"),
    "tokens": (lambda db: db.execute("UPDATE activity SET output = output + 1"), "other token counts"),
    "totals": (lambda db: db.execute("UPDATE totals SET parts = parts + 1"), "session-1 has other totals"),
    "tool totals": (
        lambda db: db.execute("INSERT INTO tool_totals SELECT id, 1, 0, 0, 1, 0 FROM sessions"),
        "session-1 has other tool totals",
    ),
    "quarters of an hour": (
        lambda db: (
            db.execute("UPDATE activity SET slot = slot + 1"),
            db.execute("UPDATE totals SET first_slot = first_slot + 1, last_slot = last_slot + 1"),
        ),
        "session-1 has other quarters of an hour than its rows",
    ),
    "long prompts": (
        lambda db: (
            db.execute("INSERT INTO long_prompts SELECT id, 0, 1, 1, 100000, 1, 0, 0, 0, 0, 0 FROM sessions"),
            db.execute(
                "INSERT INTO long_totals SELECT id, 1, 1, 100000, machine, client, 0, 0, 1, 0, 0, 0, 0, 0 FROM sessions"
            ),
        ),
        "session-1 has other long prompts than its rows",
    ),
    "tool calls": (
        lambda db: (
            db.execute("INSERT INTO tools SELECT id, 0, 1, 1, 0 FROM sessions"),
            db.execute("INSERT INTO tool_totals SELECT id, 1, 0, 0, 1, 0 FROM sessions"),
        ),
        "session-1 has other tool calls than its rows",
    ),
    "times": (lambda db: db.execute("UPDATE sessions SET ended_at = ended_at + 1"), "session-1 has other times"),
    "turns": (lambda db: db.execute("UPDATE sessions SET turns = turns + 1"), "session-1 has other turns, errors and"),
    "tokens of sessions": (
        lambda db: db.execute("UPDATE sessions SET cache_write_1h = cache_write_1h + 1"),
        "session-1 has other turns, errors and tokens than its rows",
    ),
    "models": (lambda db: db.execute("UPDATE sessions SET model = 4711"), "session-1 has other models than its rows"),
    "clients": (
        lambda db: db.execute("UPDATE totals SET machine = machine + 1"),
        "session-1 has other clients in its totals",
    ),
    "counted rows": (
        lambda db: db.execute("UPDATE totals SET starts_model = 0"),
        "session-1 has other counted rows in its totals",
    ),
    "session": (lambda db: db.execute("UPDATE sessions SET session_id = 'x'"), "session session-1 of gw-"),
    "full text": (lambda db: db.execute("UPDATE months SET row_count = 1"), "full-text table of 202611 has 30"),
}


@pytest.mark.hazard(112)
@pytest.mark.parametrize("name", TAMPERED)
def test_a_difference_is_found(home: Home, name: str) -> None:
    tamper, expected = TAMPERED[name]
    with closing(sqlite3.connect(home.index)) as connection, connection:
        tamper(connection)
    assert any(expected in problem for problem in compare_index(home)), compare_index(home)


def test_an_index_that_agrees_has_no_problems(home: Home) -> None:
    append(home, rows(5, start=28))
    assert compare_index(home) == []


def test_a_home_without_an_index_has_no_problems(home: Home) -> None:
    home.index.unlink()
    assert compare_index(home) == []
    assert not home.index.exists()


def test_the_number_of_rows_is_compared_without_reading_them(home: Home) -> None:
    refresh_index(home)
    assert compare_counts(home) == []
    with closing(sqlite3.connect(home.index)) as connection, connection:
        connection.execute("DELETE FROM parts WHERE seq = (SELECT min(seq) FROM parts)")
    (problem,) = compare_counts(home)
    assert "rows of the lake's" in problem
