"""Reading a database of another process: the rows that are visible, and the files afterwards."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from hypaware.home.sqlite_readonly import immutable_reads, open_readonly

FolderSnapshot = dict[str, tuple[int, bytes | None]]


def database(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE t (x)")
    connection.commit()
    return connection


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A database that was closed normally, without side files."""
    path = tmp_path / "closed" / "a.db"
    path.parent.mkdir()
    database(path).close()
    return path


@pytest.fixture
def abandoned(tmp_path: Path) -> Path:
    """A database of a killed process, with rows in the WAL and a stale WAL index."""
    path = tmp_path / "abandoned" / "a.db"
    path.parent.mkdir()
    (tmp_path / "owned").mkdir()
    with closing(database(tmp_path / "owned" / "a.db")) as connection:
        for _ in range(3):
            connection.execute("INSERT INTO t VALUES (1)")
            connection.commit()
        for each in (tmp_path / "owned").iterdir():
            shutil.copy(each, path.parent)
    return path


def snapshot_of(folder: Path) -> FolderSnapshot:
    paths = (folder, *folder.iterdir())
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None) for path in paths}


@pytest.mark.parametrize(("which", "rows"), [("closed", 0), ("abandoned", 3)])
def test_an_immutable_read_changes_no_timestamp(which: str, rows: int, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(which)
    before = snapshot_of(path.parent)
    with immutable_reads(), open_readonly(path) as db:
        assert db.execute("SELECT count(*) FROM t").fetchone() == (rows,)
    assert snapshot_of(path.parent) == before


@pytest.mark.parametrize(("which", "rows"), [("closed", 0), ("abandoned", 3)])
def test_an_ordinary_read_leaves_the_same_files(which: str, rows: int, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(which)
    before = set(snapshot_of(path.parent))
    with open_readonly(path) as db:
        assert db.execute("SELECT count(*) FROM t").fetchone() == (rows,)
    assert set(snapshot_of(path.parent)) == before


def test_an_immutable_read_sees_the_rows_of_an_active_writer(tmp_path: Path) -> None:
    with closing(database(tmp_path / "a.db")) as writer, immutable_reads():
        for count in (1, 2, 3):
            writer.execute("INSERT INTO t VALUES (1)")
            writer.commit()
            with open_readonly(tmp_path / "a.db") as db:
                assert db.execute("SELECT count(*) FROM t").fetchone() == (count,)


def test_a_missing_database_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError), open_readonly(tmp_path / "none.db"):
        pass
    assert list(tmp_path.iterdir()) == []


LEFT = (
    "import os, sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('PRAGMA journal_mode=WAL');"
    "db.execute('CREATE TABLE told (word TEXT)'); db.execute(\"INSERT INTO told VALUES ('a')\"); db.commit();"
)


@pytest.mark.hazard(54)
@pytest.mark.parametrize("end", ["os._exit(0)", "db.close()"])
def test_a_read_changes_no_file_and_no_timestamp(tmp_path: Path, end: str) -> None:
    """With the side files of a killed process, and without side files."""
    path = tmp_path / "told.db"
    subprocess.run([sys.executable, "-c", LEFT + end, str(path)], check=True)
    for each in tmp_path.iterdir():
        os.utime(each, ns=(1_000_000_000, 1_000_000_000))
    assert len(list(tmp_path.iterdir())) == (3 if "exit" in end else 1)
    for _ in range(2):
        before = {each.name: each.stat().st_mtime_ns for each in tmp_path.iterdir()}
        with open_readonly(path) as found:
            assert found.execute("SELECT word FROM told").fetchall() == [("a",)]
        assert {each.name: each.stat().st_mtime_ns for each in tmp_path.iterdir()} == before
