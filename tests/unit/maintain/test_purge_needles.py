"""Looking for words in the files of a home that others use meanwhile."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from hypaware.maintain.purge import needles


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "state.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as made:
        made.execute("PRAGMA journal_mode=WAL").close()
        made.execute("CREATE TABLE told (word)")
    return path


@pytest.mark.hazard(43)
def test_a_look_into_a_database_leaves_its_locks_alone(database: Path) -> None:
    """Without its locks, another process that leaves last would remove the log under the one that is open here."""
    with closing(sqlite3.connect(database, isolation_level=None)) as here:
        here.execute("INSERT INTO told VALUES ('part-7')")
        files = sorted(database.parent.iterdir())
        assert [needles.is_database(path) for path in files] == [True, True, True]
        found = needles.standing_in_databases(files, [b"part-7", b"part-70"])
        assert found[database.with_name("state.db-wal")] == 1
        come_and_go = (
            "import sqlite3, sys; there = sqlite3.connect(sys.argv[1]);"
            "there.execute('SELECT * FROM told').fetchall(); there.close()"
        )
        subprocess.run([sys.executable, "-c", come_and_go, str(database)], check=True, capture_output=True)
        assert database.with_name("state.db-wal").exists()
        here.execute("INSERT INTO told VALUES ('part-8')")


def test_words_are_found_whole(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_bytes(b"message-57 and part_9")
    assert needles.standing_in(path, [b"message-5", b"message-57", b"part", b"part_9"]) == 2


def test_databases_that_are_gone_are_left_out(tmp_path: Path) -> None:
    assert needles.standing_in_databases([tmp_path / "gone.db"], [b"x"]) == {}


def test_a_database_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="could not look"):
        needles.standing_in_databases([tmp_path], [b"x"])
