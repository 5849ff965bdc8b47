from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hypaware import telemetry
from hypaware.home import Home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A home whose telemetry is off until a test configures it, and off again after the test."""
    for name in ("HYP_DEV_TELEMETRY", "OTEL_EXPORTER_OTLP_ENDPOINT", "DEV_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(telemetry, "_process_run_id", None)
    yield Home(tmp_path / "home")
    telemetry.close()
