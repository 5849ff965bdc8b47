from __future__ import annotations

import shutil

import pytest

from hypaware.clients import standing
from hypaware.home import Home
from hypaware.status import clients, engine, gateway
from hypaware.status.checks import sinks
from tests.status_home import StatusHome

ROOM = 1 << 40


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever answers late on a busy machine is heard all the same; tests of silence say so themselves."""
    for module in (clients, engine, gateway, sinks, standing):
        monkeypatch.setattr(module, "_SECONDS", 120.0)


@pytest.fixture(autouse=True)
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's disk may be nearly full; tests of full disks say so themselves."""
    usage = shutil.disk_usage
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(path)._replace(free=ROOM))


@pytest.fixture
def at(home: Home) -> StatusHome:
    """A home that does not exist yet, on a machine with an engine and without a client."""
    return StatusHome(home).with_engine()
