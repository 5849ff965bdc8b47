"""One Spark session for all tests that need no JVM of their own: starting one takes longer than most tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hypaware.engine import archive, jars
from hypaware.engine.session import EngineSession, open_session
from hypaware.home import Home, cache_dir


def quiet(message: str, done: float, total: float) -> None:
    pass


@pytest.fixture(scope="session")
def engine_home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Of the shared session; its name is no harder than a user's may be."""
    return Home(tmp_path_factory.mktemp("engine") / "höme of ours")


@pytest.fixture(scope="session")
def engine_session(engine_home: Home) -> Iterator[EngineSession]:
    jars.install(cache_dir(), quiet)
    archive.ensure(cache_dir(), quiet)
    session = open_session(engine_home, master="local[2]", memory="512m")
    yield session
    session.close()
