"""Acceptance tests: every test runs the `hyp` command with real Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import Hyp


@pytest.fixture
def hyp(tmp_path: Path) -> Iterator[Hyp]:
    """A home of its own. Its engine, if one was started, is stopped afterwards."""
    command = Hyp(tmp_path / "home")
    yield command
    command.run("engine", "stop")


@pytest.fixture
def inline(tmp_path: Path) -> Hyp:
    return Hyp(tmp_path / "home", inline=True)
