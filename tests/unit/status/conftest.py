from __future__ import annotations

import pytest

from hypaware.home import Home
from tests.status_home import StatusHome


@pytest.fixture
def at(home: Home) -> StatusHome:
    """A home that does not exist yet, on a machine with an engine and without a client."""
    return StatusHome(home).with_engine()
