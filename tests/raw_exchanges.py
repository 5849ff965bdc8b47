"""Exchanges of real clients as the gateway stores them: raw rows, message rows, and a light lake."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace

from hypaware.capture.body_parts import StoredParts
from hypaware.capture.decoded import Decoded
from hypaware.capture.exchanges import raw_row
from hypaware.capture.project.projection import project
from hypaware.capture.project.seen import Seen
from hypaware.home import Home
from hypaware.lake.flush import Flusher, Limits, Report
from hypaware.model import datasets
from hypaware.model.datasets import Row
from hypaware.opening import open_home
from hypaware.spool.writer import Spool
from tests import wire
from tests.light_lake import LightLake
from tests.light_life import NO_TIMER

EXCHANGES = "ai_gateway_exchanges"
MESSAGES = "ai_gateway_messages"


def recorded(*scenarios: str) -> list[Decoded]:
    """The exchanges of a scenario such as `claude-2.1.325/tools`, in the order in which they ended."""
    found = [
        replace(each, exchange_id=f"{name}/{each.exchange_id}")
        for name in scenarios
        for each in wire.sample(wire.SAMPLES / f"{name}.ndjson.xz")
    ]
    return sorted(found, key=lambda each: each.ended_at)


def taken_down(exchanges: Iterable[Decoded]) -> tuple[list[Row], list[Row]]:
    """Return raw rows and message rows of one gateway that recorded all of them."""
    stored, seen = StoredParts(), Seen()
    raw, messages = list[Row](), list[Row]()
    for exchange in exchanges:
        projection = project(exchange, seen)
        made = raw_row(exchange, projection, stored)
        made.mark_stored(stored)
        raw.append(made.row)
        messages += projection.rows
    return raw, messages


def append(home: Home, dataset: str, rows: list[Row]) -> None:
    with Spool(home, NO_TIMER) as spool:
        spool.append(dataset, rows)


def flush(home: Home, dataset: str) -> Report:
    with closing(open_home(home).store) as store, closing(LightLake(home)) as lake:
        return Flusher(home, store, lake, Limits()).flush(datasets.get(dataset), wait=0)


def keep(home: Home, dataset: str, rows: list[Row]) -> None:
    """In the lake."""
    append(home, dataset, rows)
    flush(home, dataset)
