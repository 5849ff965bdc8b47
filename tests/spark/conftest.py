"""One Spark session for all tests that do not need their own JVM, because starting one takes longer than most tests."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hypaware.engine import class_archive, jars
from hypaware.engine.session import EngineSession, open_session
from hypaware.home import Home, cache_dir
from hypaware.query import views
from tests.support.shared_lake import SharedLakeServers, new_lake, start_lake_servers


def quiet(message: str, done: float, total: float) -> None:
    pass


@pytest.fixture(scope="session")
def session_home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Return the home of the shared session. Its name has special characters, as a user's home may have."""
    return Home(tmp_path_factory.mktemp("engine") / "höme of ours")


@pytest.fixture(scope="module")
def engine_home(engine_session: EngineSession, session_home: Home) -> Home:
    """Return the home of the shared session, as empty as a new one, so that no module depends on the ones before."""
    for folder, kept_by_jvm in (
        (session_home.root, ("engine", "lake")),
        (session_home.lake, ("catalog.db", "lake.lock", "warehouse")),
        (session_home.warehouse, ()),
    ):
        for path in folder.iterdir():
            if not path.name.startswith(kept_by_jvm):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    if session_home.catalog.exists():
        with closing(sqlite3.connect(session_home.catalog, isolation_level=None)) as catalog:
            for (table,) in catalog.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                catalog.execute(f"DELETE FROM {table}")
    views._views_by_session.clear()
    return session_home


@pytest.fixture(scope="session")
def lake_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedLakeServers]:
    """Return the servers that tests share. A test that stops one of them starts it again."""
    with start_lake_servers(tmp_path_factory.mktemp("servers")) as started:
        yield started


@pytest.fixture
def servers(lake_servers: SharedLakeServers, tmp_path: Path) -> Iterator[SharedLakeServers]:
    """Return the servers with a lake of the test's own."""
    with new_lake(lake_servers, tmp_path) as found:
        yield found


@pytest.fixture(scope="session")
def engine_session(session_home: Home) -> Iterator[EngineSession]:
    jars.install_jars(cache_dir(), quiet)
    class_archive.ensure_archive(cache_dir(), quiet)
    session = open_session(session_home, master="local[2]", memory="512m")
    yield session
    session.close()
