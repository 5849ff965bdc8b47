"""Views in tests wait for the rows that were just recorded, however busy the machine is."""

from __future__ import annotations

import pytest

from hypaware.page import index_updater
from tests.support.processes import PATIENCE


@pytest.fixture(autouse=True)
def patient_views(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_updater, "_WAIT_SECONDS", PATIENCE)
