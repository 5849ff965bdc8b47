from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hypaware.home import Home

Write = Callable[[str], Home]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def write(home: Home) -> Write:
    """Return a function that writes the config.toml of the home."""

    def write_config(text: str) -> Home:
        home.root.mkdir(exist_ok=True)
        home.config.write_text(text, encoding="utf-8")
        return home

    return write_config
