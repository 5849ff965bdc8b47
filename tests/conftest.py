"""What every test may use. `from tests.rows import …` and its neighbours work from any test."""

from __future__ import annotations

import sys
from pathlib import Path

import hypothesis
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from hypaware.home import Home

# A slow machine is not a failure.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """The paths of a home that does not exist yet."""
    return Home(tmp_path / "home")
