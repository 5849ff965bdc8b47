from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hypaware.home import Home
from hypaware.opening import identify
from hypaware.spool import segments
from hypaware.spool.reader import read_spooled_rows
from hypaware.spool.segments import Folder
from tests.rows import DATASET

Spooled = Callable[[], list[str]]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home that exists, so that producers need no database to know whose it is."""
    made = Home(tmp_path / "home")
    identify(made)
    return made


@pytest.fixture
def folder(home: Home) -> Folder:
    found = segments.folder(home, DATASET)
    found.create()
    return found


@pytest.fixture
def spooled(home: Home) -> Spooled:
    """The message ids of the rows that wait, as flush would take them."""
    return lambda: [row["message_id"] for row in read_spooled_rows(home, DATASET)]
