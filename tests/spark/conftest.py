"""One Spark session for all tests that do not need their own JVM, because starting one takes longer than most tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hypaware.engine import class_archive, jars
from hypaware.engine.session import EngineSession, open_session
from hypaware.home import Home, cache_dir


def quiet(message: str, done: float, total: float) -> None:
    pass


@pytest.fixture(scope="session")
def engine_home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Return the home of the shared session. Its name has special characters, as a user's home may have."""
    return Home(tmp_path_factory.mktemp("engine") / "höme of ours")


@pytest.fixture(scope="session")
def engine_session(engine_home: Home) -> Iterator[EngineSession]:
    jars.install_jars(cache_dir(), quiet)
    class_archive.ensure_archive(cache_dir(), quiet)
    session = open_session(engine_home, master="local[2]", memory="512m")
    yield session
    session.close()
