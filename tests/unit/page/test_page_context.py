"""The index as the page reads it: up to date, never loading what reads data files, never waiting for long."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hypaware.errors import NotReady, Retryable
from hypaware.home import Home, locks
from hypaware.index import builder
from hypaware.index.refresh import refresh_index
from hypaware.index.store import Index
from hypaware.page import index_updater
from hypaware.page.context import PageContext
from hypaware.state.home_opener import open_home
from tests.support import processes
from tests.support.edited_lake import add_file, stored_row
from tests.support.light_home import append
from tests.support.processes import PATIENCE, eventually
from tests.support.rows import rows


def make_home(root: Path, in_lake: int = 0, in_spool: int = 0) -> Home:
    home = Home(root)
    gateway = open_home(home).gateway_id
    if in_lake:
        add_file(home, [stored_row(number, each, gateway) for number, each in enumerate(rows(in_lake), 1)])
    if in_spool:
        append(home, rows(in_spool, start=in_lake))
    return home


def count_rows(index: Index) -> int:
    return int(index.connection.execute("SELECT count(*) FROM parts").fetchone()[0])


def read_count(context: PageContext) -> int:
    return asyncio.run(context.read(count_rows))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return make_home(tmp_path / "home", in_lake=20, in_spool=3)


@pytest.fixture
def context(home: Home) -> Iterator[PageContext]:
    with closing(PageContext(home)) as context:
        yield context


def test_rows_of_the_spool_are_seen_without_a_builder(
    context: PageContext, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    eventually(lambda: read_count(context) == 23)
    monkeypatch.setattr(builder, "start_builder", lambda _home: pytest.fail("a builder was started"))
    append(home, rows(2, start=23))
    eventually(lambda: read_count(context) == 25)
    eventually(lambda: context.notice() is None)


def test_rows_of_the_lake_are_seen_soon(context: PageContext, home: Home) -> None:
    eventually(lambda: read_count(context) == 23)
    gateway = open_home(home).gateway_id
    add_file(home, [stored_row(number, each, gateway) for number, each in enumerate(rows(5, start=30), 100)])
    eventually(lambda: read_count(context) == 28)


def test_the_process_never_loads_what_reads_data_files(home: Home) -> None:
    code = """
import asyncio, sys, time
from hypaware.home import Home
from hypaware.page.app import make_local_app
from hypaware.page.context import PageContext

context = PageContext(Home.from_environment())
make_local_app(context)
count = lambda index: index.connection.execute("SELECT count(*) FROM parts").fetchone()[0]
refresh = lambda index: index.refresh()
while asyncio.run(context.read(count)) < 23:
    time.sleep(0.05)
asyncio.run(context.read(refresh))
print(*sorted({"pyspark", "pyarrow", "numpy", "duckdb"} & set(sys.modules)))
"""
    assert processes.succeed(code, home).strip() == ""


def test_nothing_is_refreshed_while_nothing_changes(
    context: PageContext, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    refresh_index(home)
    refreshed: list[Any] = []

    def refresh(*args: Any, **named: Any) -> Any:
        refreshed.append(args)
        return refresh_index(*args, **named)

    monkeypatch.setattr(index_updater, "refresh_index", refresh)
    for _ in range(6):
        assert read_count(context) == 23
    eventually(lambda: refreshed)
    for _ in range(6):
        assert read_count(context) == 23
    assert len(refreshed) == 1
    append(home, rows(1, start=23))
    eventually(lambda: read_count(context) == 24)
    assert len(refreshed) == 2


def test_a_page_answers_while_the_index_is_being_built(context: PageContext, home: Home) -> None:
    held = locks.try_lock(builder.builder_lock_path(home))
    assert held is not None
    try:
        assert read_count(context) == 0
        eventually(lambda: context.notice() is not None)
        notice = context.notice()
        assert notice is not None
        assert "being built" in notice.message
    finally:
        locks.unlock(held)
    eventually(lambda: read_count(context) == 23)
    eventually(lambda: context.notice() is None)


def _damage(home: Home) -> None:
    home.index.write_bytes(os.urandom(50_000))


def _overwrite_pages(home: Home) -> None:
    with home.index.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(home.index.stat().st_size - 4096))


def _remove(home: Home) -> None:
    for path in home.root.glob("index.db*"):
        path.unlink()


@pytest.mark.parametrize("harm", [_damage, _overwrite_pages, _remove])
def test_a_damaged_or_lost_index_is_built_again_while_the_page_answers(
    context: PageContext, home: Home, harm: Any
) -> None:
    """Nothing is recorded, and no file but the index changes."""
    eventually(lambda: read_count(context) == 23)
    # While a writer holds the index open, its log still has the pages.
    eventually(lambda: not home.index.with_name("index.db-wal").exists())
    harm(home)

    def is_built_again() -> bool:
        try:
            return read_count(context) == 23
        except Retryable:  # the page says that it is being built
            return False

    eventually(is_built_again)


def test_an_index_of_a_newer_version_is_left_alone_and_the_page_reports_it(context: PageContext, home: Home) -> None:
    eventually(lambda: read_count(context) == 23)
    with closing(sqlite3.connect(home.index)) as connection:
        connection.execute("PRAGMA user_version = 9999")
    append(home, rows(1, start=40))
    with pytest.raises(Retryable, match=r"newer version 9999.*hyp daemon restart"):
        eventually(lambda: read_count(context) < 0)
    with closing(sqlite3.connect(home.index)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (9999,)


def test_a_lake_that_cannot_be_read_does_not_start_builder_after_builder(
    context: PageContext, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    eventually(lambda: read_count(context) == 23)
    gateway = open_home(home).gateway_id
    add_file(home, [stored_row(number, each, gateway) for number, each in enumerate(rows(5, start=30), 100)])
    newest = max(home.warehouse.rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    newest.write_bytes(b"no parquet")
    started: list[Home] = []
    start = builder.start_builder

    def start_builder(of: Home) -> Any:
        started.append(of)
        return start(of)

    monkeypatch.setattr(builder, "start_builder", start_builder)
    monkeypatch.setattr(index_updater, "_SILENT_SECONDS", 1e9)
    eventually(lambda: read_count(context) == 23 and context.notice() is not None)
    notice = context.notice()
    assert notice is not None
    assert "cannot be read" in notice.message
    before = len(started)
    for _ in range(20):
        assert read_count(context) == 23
    assert len(started) <= before + 1, "it waits before it tries again"


def test_without_a_home_the_error_names_setup(tmp_path: Path) -> None:
    with closing(PageContext(Home(tmp_path / "nothing"))) as context:
        with pytest.raises(NotReady) as caught:
            read_count(context)
        assert caught.value.repair == ("hyp setup",)
    assert not (tmp_path / "nothing").exists()


def test_closing_ends_queries_that_run(home: Home) -> None:
    refresh_index(home)
    context = PageContext(home)
    running = threading.Event()

    def spin(index: Index) -> None:
        running.set()
        index.connection.execute("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n")

    failures: list[BaseException] = []

    def work() -> None:
        try:
            context.read_here(spin)
        except sqlite3.OperationalError as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert running.wait(PATIENCE)
    eventually(lambda: context.close() or not thread.is_alive())  # type: ignore[func-returns-value]
    assert [str(each) for each in failures] == ["interrupted"]


def test_the_prices_are_read_again_when_their_file_changes(context: PageContext, home: Home) -> None:
    packaged = context.prices()
    assert context.prices() is packaged
    own = home.root / "prices.json"
    own.write_text('{"as_of": "2026-01-01", "models": {"m": {"input": 1, "output": 2}}}')
    home.config.write_text('version = 1\n[usage]\nprices = "prices.json"\n')
    assert context.prices().as_of == "2026-01-01"
    own.write_text('{"as_of": "2026-02-02", "models": {}}')
    assert context.prices().as_of == "2026-02-02"
    own.unlink()
    with pytest.raises(Exception, match="cannot read the prices"):
        context.prices()
