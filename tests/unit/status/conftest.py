from __future__ import annotations

import shutil

import pytest

from hypaware.gateway import attach_status
from hypaware.home import Home
from hypaware.status import diagnostics, doctor
from tests.support.status_home import StatusHome

ROOM = 1 << 40


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use long timeouts on a busy machine; tests of timeouts set their own."""
    for module, name in (
        (diagnostics, "TIMEOUT_SECONDS"),
        (doctor, "_CONNECT_SECONDS"),
        (attach_status, "_SECONDS"),
    ):
        monkeypatch.setattr(module, name, 120.0)


@pytest.fixture(autouse=True)
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the disk has space; tests of full disks set their own value."""
    usage = shutil.disk_usage
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(path)._replace(free=ROOM))


@pytest.fixture
def at(home: Home) -> StatusHome:
    """A home that does not exist yet, on a machine with an engine but without a client."""
    return StatusHome(home).with_engine()
