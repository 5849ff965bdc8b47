"""Fixtures for all tests. Helpers are in tests/support."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import hypothesis
import pytest

from hypaware.home import Home
from tests.support.ports import FreePort, held_port
from tests.support.postgres_server import PostgresServer, postgres_server
from tests.support.processes import PATIENCE

# A shell starts background processes with SIGINT ignored, which the commands under test must not inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A slow machine is not a failure. `make test` uses the same examples each time, so that it fails only because of a
# change; a soak draws new ones.
_PATIENT = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("steady", _PATIENT, derandomize=True, database=None)
hypothesis.settings.register_profile("soak", _PATIENT)
hypothesis.settings.load_profile("soak" if "HYP_SOAK" in os.environ else "steady")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Return the home of the test, which does not exist yet."""
    return Home(tmp_path / "home")


@pytest.fixture
def free_port() -> Iterator[FreePort]:
    """Return a function that reserves ports until the end of the test."""
    with ExitStack() as held:
        yield lambda: held.enter_context(held_port())


@pytest.fixture
def views_wait_for_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each view of a page in this process wait for rows that were just recorded, however busy the machine is."""
    monkeypatch.setattr("hypaware.page.index_updater._WAIT_SECONDS", PATIENCE)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Return the PostgreSQL server that the tests of a process share. Each uses a schema of its own."""
    with postgres_server() as server:
        yield server
