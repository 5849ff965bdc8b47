"""Opening the index: damage, foreign files, other writers, and homes that cannot be written."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hypaware.errors import Retryable
from hypaware.faults import list_crash_points
from hypaware.home import Home, locks
from hypaware.index import builder, database, store
from hypaware.index.refresh import IndexBehind, refresh_index
from hypaware.index.store import drop_index, open_index
from hypaware.state.home_opener import open_home
from hypaware.testing.fault_injection import run_in_child
from tests.support.edited_lake import add_file, remove_all_files, stored_row
from tests.support.index_oracle import assert_index_agrees
from tests.support.light_home import append
from tests.support.processes import PATIENCE
from tests.support.rows import rows
from tests.support.small_disk import mounted
from tests.support.unprivileged import unprivileged

POINTS = [point.name for point in list_crash_points() if point.name.startswith(("index.write", "index.create"))]


def make_home(root: Path, count: int = 20) -> Home:
    home = Home(root)
    gateway = open_home(home).gateway_id
    add_file(home, [stored_row(number, each, gateway) for number, each in enumerate(rows(count), 1)])
    append(home, rows(3, start=count))
    return home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return make_home(tmp_path / "home")


def assert_intact(home: Home) -> None:
    with open_index(home) as index:
        assert_index_agrees(home, index, ["text"])
    assert database.list_files(home)[0] == home.index
    assert not list(home.root.glob(".index.db.*"))


def test_the_status_is_read_while_another_process_creates_the_index_and_its_side_files_go(home: Home) -> None:
    side_file, ended = home.root / ".index.db.1-shm", threading.Event()

    def create_and_remove() -> None:
        while not ended.is_set():
            side_file.touch()
            side_file.unlink()

    other = threading.Thread(target=create_and_remove)
    other.start()
    try:
        assert {builder.read_index_status(home)["bytes"] for _ in range(300)} == {0}
    finally:
        ended.set()
        other.join()


def _garbage(home: Home) -> None:
    home.index.write_bytes(os.urandom(50_000))


def _truncated(home: Home) -> None:
    os.truncate(home.index, home.index.stat().st_size // 2 // 4096 * 4096)


def _empty(home: Home) -> None:
    home.index.write_bytes(b"")


def _newer(home: Home) -> None:
    with closing(sqlite3.connect(home.index)) as connection:
        connection.execute("PRAGMA user_version = 9999")


def _foreign(home: Home) -> None:
    home.index.unlink()
    with closing(sqlite3.connect(home.index)) as connection:
        connection.execute("CREATE TABLE diary (entry)")


def _no_wal_of_its_own(home: Home) -> None:
    """The database is gone, and its write-ahead log is left."""
    home.index.with_name("index.db-wal").write_bytes(os.urandom(8192))
    home.index.unlink()


def _overwritten_pages(home: Home) -> None:
    with home.index.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(home.index.stat().st_size - 4096))


DAMAGES = [_garbage, _truncated, _empty, _newer, _foreign, _no_wal_of_its_own, _overwritten_pages]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_or_foreign_index_is_built_again(home: Home, damage: Any) -> None:
    refresh_index(home)
    damage(home)
    assert_intact(home)


def test_a_process_of_an_older_version_leaves_a_newer_index_alone(home: Home) -> None:
    refresh_index(home)
    _newer(home)
    before = home.index.read_bytes()
    with pytest.raises(Retryable, match="newer version 9999"):
        refresh_index(home, replace_newer=False)
    with pytest.raises(Retryable, match="newer version 9999"):
        builder.build_index(home)
    assert home.index.read_bytes() == before


def test_an_index_that_is_damaged_while_it_is_read_is_removed(home: Home) -> None:
    def read() -> None:
        with open_index(home) as index:
            _overwritten_pages(home)
            index.connection.execute("SELECT sum(length(texts)) FROM blocks").fetchone()

    with pytest.raises(Retryable, match="run the command again"):
        read()
    assert_intact(home)


@pytest.mark.hazard(112)
@pytest.mark.parametrize("point", POINTS)
def test_a_killed_build_is_continued(home: Home, point: str) -> None:
    assert run_in_child(lambda: refresh_index(home), crash_at=f"{point}:1") is False
    assert_intact(home)


def test_readers_see_one_state_while_rows_are_added(home: Home) -> None:
    with open_index(home) as index:
        before = index.connection.execute("SELECT count(*) FROM parts").fetchone()[0]
        append(home, rows(5, start=500))
        refresh_index(home)
        assert index.connection.execute("SELECT count(*) FROM parts").fetchone()[0] == before
        index.refresh()
        assert index.connection.execute("SELECT count(*) FROM parts").fetchone()[0] == before + 5


def test_a_command_answers_while_another_process_writes(home: Home) -> None:
    refresh_index(home)
    append(home, rows(5, start=500))
    notes: list[str] = []
    with database.hold_lock(home, 0), open_index(home, note=notes.append, lock_seconds=0.0) as index:
        assert index.connection.execute("SELECT count(*) FROM parts").fetchone()[0] == 23
    assert len(notes) == 1
    assert "another process is writing the index" in notes[0]


def test_two_concurrent_commands_build_one_index(home: Home) -> None:
    work = "import sys; from pathlib import Path; from hypaware.home import Home\n"
    work += "from hypaware.index.store import open_index; open_index(Home(Path(sys.argv[1]))).close()"
    running = [subprocess.Popen([sys.executable, "-c", work, str(home.root)]) for _ in range(3)]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert_intact(home)


def test_opening_an_index_that_is_up_to_date_imports_nothing_heavy(home: Home) -> None:
    refresh_index(home)
    work = "import sys; from pathlib import Path; from hypaware.home import Home\n"
    work += "from hypaware.index.store import open_index; open_index(Home(Path(sys.argv[1]))).close()\n"
    work += "print(sorted({'pyarrow', 'fastavro', 'pyspark', 'numpy'} & sys.modules.keys()))"
    found = subprocess.run([sys.executable, "-c", work, str(home.root)], capture_output=True, check=True, text=True)
    assert found.stdout == "[]\n"


class TestBackground:
    @pytest.fixture(autouse=True)
    def few_rows_inline(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(store, "_INLINE_ROWS", 10)

    def test_many_missing_rows_are_added_by_a_builder(self, home: Home) -> None:
        notes: list[str] = []
        with open_index(home, note=notes.append, build_seconds=PATIENCE) as index:
            assert_index_agrees(home, index, ["text"])
            assert index.progress is None
        assert notes == []

    def test_a_command_does_not_wait_for_it(self, home: Home) -> None:
        notes: list[str] = []
        with open_index(home, note=notes.append, build_seconds=0.0) as index:
            assert index.progress == 0.0
        assert len(notes) == 1
        assert "the index is being built" in notes[0]
        assert builder.wait_for_builder(home, 60.0)
        assert_intact(home)

    @pytest.mark.hazard(112)
    def test_many_rows_that_the_lake_has_lost_are_not_removed_by_a_command(self, home: Home) -> None:
        refresh_index(home)
        remove_all_files(home)
        with pytest.raises(IndexBehind):
            refresh_index(home, at_most_rows=5)
        assert refresh_index(home, at_most_rows=6).removed == 20
        assert_intact(home)

    def test_a_command_says_that_rows_are_being_removed(self, home: Home) -> None:
        refresh_index(home)
        lock = locks.try_lock(builder.builder_lock_path(home))  # no builder comes first
        assert lock is not None
        notes: list[str] = []
        open_index(home, note=notes.append).close()
        assert notes == []
        remove_all_files(home)
        with pytest.raises(IndexBehind):
            refresh_index(home, at_most_rows=0)
        with open_index(home, note=notes.append, build_seconds=0.0) as index:
            assert index.connection.execute("SELECT count(*) FROM parts").fetchone()[0] == 23
        assert notes == [
            "rows that the lake has lost are being removed from the index; some may still be in this answer"
        ]
        locks.unlock(lock)
        notes.clear()
        refresh_index(home)
        open_index(home, note=notes.append).close()
        assert notes == []


@pytest.mark.parametrize("indexed", [True, False])
def test_a_home_that_cannot_be_written(home: Home, indexed: bool) -> None:
    if indexed:
        refresh_index(home)
    append(home, rows(1, start=600))
    folders = [path for path in (home.root, *home.root.rglob("*")) if path.is_dir()]
    for path in (*folders, home.run / "index.lock"):
        path.chmod(0o500 if path.is_dir() else 0o400) if path.exists() else None
    notes: list[str] = []
    try:
        with unprivileged():
            if not indexed:
                with pytest.raises(Retryable, match="cannot be read, and not be created"):
                    open_index(home, note=notes.append)
            else:
                with open_index(home, note=notes.append) as index:
                    assert index.connection.execute("SELECT count(*) FROM parts").fetchone()[0] == 23
    finally:
        for path in folders:
            path.chmod(0o700)
    assert "the index cannot be written" in notes[0]


def test_a_full_disk(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "8m") as disk:
        home = make_home(disk.root / "home")
        refresh_index(home)
        append(home, rows(200, start=600))
        disk.fill()
        notes: list[str] = []
        with open_index(home, note=notes.append) as index:
            assert index.connection.execute("SELECT count(*) FROM parts").fetchone()[0] == 23
        assert "the index cannot be written" in notes[0]
        disk.make_room()
        assert_intact(home)


def test_a_dropped_index_leaves_nothing(home: Home) -> None:
    refresh_index(home)
    drop_index(home)
    assert database.list_files(home) == []
    assert_intact(home)
