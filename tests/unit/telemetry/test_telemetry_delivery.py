"""Metrics of successful and failed deliveries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hypaware import telemetry
from hypaware.home import Home
from tests.support.delivery_home import DeliveryHome
from tests.support.light_home import DATASET, append, flush
from tests.support.light_purge import deliver
from tests.support.rows import rows


def measured(home: Home) -> dict[str, dict[str, Any]]:
    """Return the newest record of each metric."""
    telemetry.flush()
    lines = [line for path in home.telemetry.glob("metrics-*") for line in path.read_text().splitlines()]
    return {record["name"]: record for record in map(json.loads, lines)}


def test_sink_lag_is_measured_after_each_round(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(home, rows(5))
    flush(home)
    there = tmp_path / "there"
    there.touch()
    to = DeliveryHome(home).declare(archive=there / "blobs")
    monkeypatch.setenv("HYP_DEV_TELEMETRY", "1")
    telemetry.configure(home.telemetry)
    assert [report.status for report in deliver(home, to)] == ["failed"]
    found = measured(home)
    about = {"sink": "archive", "hyp_dataset": DATASET, "source": "claude"}
    assert found["hyp_sink_export_failures_total"]["value"] == 1
    assert found["hyp_sink_lag_rows"]["value"] == 5
    assert about.items() <= found["hyp_sink_lag_rows"]["attributes"].items()
    there.unlink()
    there.mkdir()
    assert [report.status for report in deliver(home, to)] == ["ok"]
    assert measured(home)["hyp_sink_lag_rows"]["value"] == 0
