"""A home whose lake is light: append and flush as a producer and an engine would, without Spark."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from hypaware.home import Home
from hypaware.lake.flush import Flusher, Limits, Report
from hypaware.lake.secure import secure_all, step_back_where_damaged
from hypaware.model import datasets
from hypaware.opening import open_home
from hypaware.spool.writer import SealRule, Spool
from hypaware.state import flushes
from tests.light_lake import LightLake

DATASET = "ai_gateway_messages"
NO_TIMER = SealRule(linger=float("inf"))


def append(home: Home, rows: list[dict[str, Any]], seal: bool = True) -> None:
    spool = Spool(home, NO_TIMER)
    spool.append(DATASET, rows)
    if seal:
        spool.close()


def flush(home: Home, limits: Limits | None = None) -> Report:
    """What an engine does: it looks for damage first, then recovers, then commits."""
    with closing(open_home(home).store) as store, closing(LightLake(home)) as lake:
        with store.reading() as connection:
            known = flushes.high_water(connection)
        step_back_where_damaged(home, {name: max(by_source.values()) for name, by_source in known.items()})
        secure_all(home)
        return Flusher(home, store, lake, limits or Limits()).flush(datasets.get(DATASET), wait=0)
