"""Searching for words in files of a home that is in use."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from hypaware.maintain.purge import verify


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "state.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=WAL").close()
        db.execute("CREATE TABLE words (word)")
    return path


@pytest.mark.hazard(43)
def test_searching_a_database_keeps_its_locks(database: Path) -> None:
    """Without these locks, another process that closes last would delete the log of the database that is open here."""
    with closing(sqlite3.connect(database, isolation_level=None)) as db:
        db.execute("INSERT INTO words VALUES ('part-7')")
        files = sorted(database.parent.iterdir())
        assert [verify.is_database(path) for path in files] == [True, True, True]
        found = verify.count_in_databases(files, [b"part-7", b"part-70"])
        assert found[database.with_name("state.db-wal")] == 1
        open_and_close = (
            "import sqlite3, sys; there = sqlite3.connect(sys.argv[1]);"
            "there.execute('SELECT * FROM words').fetchall(); there.close()"
        )
        subprocess.run([sys.executable, "-c", open_and_close, str(database)], check=True, capture_output=True)
        assert database.with_name("state.db-wal").exists()
        db.execute("INSERT INTO words VALUES ('part-8')")


def test_only_whole_words_are_found(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_bytes(b"message-57 and part_9")
    assert verify.count_occurrences(path, [b"message-5", b"message-57", b"part", b"part_9"]) == 2


def test_missing_databases_are_left_out(tmp_path: Path) -> None:
    assert verify.count_in_databases([tmp_path / "gone.db"], [b"x"]) == {}


def test_an_unreadable_database_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="the search process failed"):
        verify.count_in_databases([tmp_path], [b"x"])
