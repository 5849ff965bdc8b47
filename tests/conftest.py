"""What every test may use. `from tests.rows import …` and its neighbours work from any test."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import hypothesis
import pytest

from hypaware.home import Home
from tests.ports import FreePort, held_port

# A shell starts what runs in the background with Ctrl-C ignored; the commands under test must not inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A slow machine is not a failure. `make test` tries the same examples each time, so that it fails for a change and not
# by chance; a soak draws new ones.
_PATIENT = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("steady", _PATIENT, derandomize=True, database=None)
hypothesis.settings.register_profile("soak", _PATIENT)
hypothesis.settings.load_profile("soak" if "HYP_SOAK" in os.environ else "steady")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """The paths of a home that does not exist yet."""
    return Home(tmp_path / "home")


@pytest.fixture
def free_port() -> Iterator[FreePort]:
    """Gives out ports that are the test's own until its end."""
    with ExitStack() as held:
        yield lambda: held.enter_context(held_port())
