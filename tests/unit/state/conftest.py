from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hypaware.state.store import StateStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    made = StateStore(tmp_path / "state.db")
    made.migrate()
    yield made
    made.close()
