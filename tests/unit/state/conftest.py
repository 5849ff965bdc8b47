"""Every test with a `store` runs over SQLite and over PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hypaware.state.store import StateStore
from tests.support.state_database import KINDS, make_database


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateStore]:
    with closing(StateStore(make_database(request.param, tmp_path, request))) as made:
        made.migrate()
        yield made


@pytest.fixture
def state_file(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
def sqlite_store(state_file: Path) -> Iterator[StateStore]:
    with closing(StateStore(state_file)) as made:
        made.migrate()
        yield made
