"""Paths of settlements: `lake/settlements/<dataset>/<flush id>-<n>.parquet`. See `lake.settlements`."""

from __future__ import annotations

from pathlib import Path

from hypaware.home import Home


def folder(home: Home, dataset: str) -> Path:
    return home.lake / "settlements" / dataset


def files(home: Home, dataset: str) -> list[Path]:
    return sorted(folder(home, dataset).glob("*.parquet"))
