"""Exchanges of real clients as the gateway stores them: raw rows, message rows, and a light lake."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace

from hypaware.config import FlushConfig
from hypaware.gateway.exchange import DecodedExchange
from hypaware.gateway.projection.conversation import ConversationCache
from hypaware.gateway.projection.projector import project_exchange
from hypaware.gateway.raw_exchanges import StoredParts, build_raw_row
from hypaware.home import Home
from hypaware.lake.flush import Flusher, FlushReport
from hypaware.model import datasets
from hypaware.model.datasets import Row
from hypaware.spool.writer import Spool
from hypaware.state.home_opener import open_home
from tests.support import exchange_samples
from tests.support.light_home import NO_TIMER
from tests.support.light_lake import LightLake

EXCHANGES = "ai_gateway_exchanges"
MESSAGES = "ai_gateway_messages"


def recorded(*scenarios: str) -> list[DecodedExchange]:
    """Return the exchanges of a scenario such as `claude-2.1.325/tools`, in the order in which they ended."""
    found = [
        replace(each, exchange_id=f"{name}/{each.exchange_id}")
        for name in scenarios
        for each in exchange_samples.read_sample(exchange_samples.SAMPLES / f"{name}.ndjson.xz")
    ]
    return sorted(found, key=lambda each: each.ended_at)


def project_all(exchanges: Iterable[DecodedExchange]) -> tuple[list[Row], list[Row]]:
    """Return raw rows and message rows of one gateway that recorded all of them."""
    stored, seen = StoredParts(), ConversationCache()
    raw, messages = list[Row](), list[Row]()
    for exchange in exchanges:
        projection = project_exchange(exchange, seen)
        made = build_raw_row(exchange, projection, stored)
        stored.add(made)
        raw.append(made.row)
        messages += projection.rows
    return raw, messages


def append(home: Home, dataset: str, rows: list[Row]) -> None:
    with Spool(home, NO_TIMER) as spool:
        spool.append(dataset, rows)


def flush(home: Home, dataset: str) -> FlushReport:
    with closing(open_home(home).store) as store, closing(LightLake(home)) as lake:
        return Flusher(home, store, lake, FlushConfig()).flush(datasets.get(dataset), wait=0)


def store(home: Home, dataset: str, rows: list[Row]) -> None:
    """Store the rows in the lake."""
    append(home, dataset, rows)
    flush(home, dataset)
