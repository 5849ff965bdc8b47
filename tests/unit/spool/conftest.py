from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hypaware.home import Home
from hypaware.spool import segments
from hypaware.spool.reader import read_spooled_rows
from hypaware.spool.segments import SpoolFolder
from hypaware.state.home_opener import read_identity
from tests.support.rows import DATASET

Spooled = Callable[[], list[str]]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Return an existing home, so that producers need no database to learn its gateway id."""
    made = Home(tmp_path / "home")
    read_identity(made)
    return made


@pytest.fixture
def folder(home: Home) -> SpoolFolder:
    found = segments.spool_folder(home, DATASET)
    found.create()
    return found


@pytest.fixture
def spooled(home: Home) -> Spooled:
    """Return the message ids of the spooled rows, as a flush would read them."""
    return lambda: [row["message_id"] for row in read_spooled_rows(home, DATASET)]
