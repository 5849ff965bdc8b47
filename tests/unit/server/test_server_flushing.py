"""The server's flush task: flushes a large or old spool and retries failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hypaware.config import Config, FlushConfig
from hypaware.errors import Retryable
from hypaware.home import Home
from hypaware.server import flushing
from hypaware.server.flushing import Flushing
from hypaware.server.meters import Meters
from hypaware.spool import segments
from hypaware.spool.writer import Spool
from tests.processes import eventually
from tests.rows import DATASET, rows

NEVER = 10.0**6


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flushing, "_POLL_SECONDS", 0.005)
    monkeypatch.setattr(flushing, "_FIRST_PAUSE", 0.005)


@contextmanager
def running(home: Home, run: Callable[[], object], **settings: Any) -> Iterator[Meters]:
    meters = Meters()
    config = Config(flush=FlushConfig(**{"interval": NEVER, **settings}))
    loop = Flushing(home, lambda: config, meters, run)
    try:
        yield meters
    finally:
        loop.stop()
        loop._thread.join(60)


def wait_in_spool(home: Home, count: int) -> None:
    with Spool(home) as spool:
        spool.append(DATASET, rows(count))


def take_away(home: Home) -> None:
    for segment in segments.sealed_segments(segments.folder(home, DATASET)):
        segment.path.unlink()


@pytest.mark.parametrize("settings", [{"interval": 0.001}, {"max_rows": 10}, {"max_bytes": 1000}])
def test_old_or_large_spool_is_flushed(home: Home, settings: dict[str, Any]) -> None:
    asked: list[str] = []

    def run() -> None:
        asked.append("flush")
        take_away(home)

    wait_in_spool(home, 10)
    with running(home, run, **settings) as meters:
        eventually(lambda: asked)
        eventually(lambda: b'hyp_server_flushes_total{status="ok"} 1.0' in meters.text())
    assert asked == ["flush"], "an empty spool is not flushed again"


def test_small_and_recent_spool_is_not_flushed(home: Home) -> None:
    wait_in_spool(home, 10)
    loop = Flushing(home, lambda: Config(flush=FlushConfig(interval=NEVER)), Meters(), lambda: None)
    try:
        assert not loop._is_due()
    finally:
        loop.stop()


def test_failed_flush_is_retried(home: Home) -> None:
    tries: list[str] = []

    def run() -> None:
        tries.append("flush")
        if len(tries) == 1:
            raise Retryable("the engine died")
        if len(tries) == 2:
            raise ZeroDivisionError("a fault of ours")
        take_away(home)

    wait_in_spool(home, 10)
    with running(home, run, interval=0.001) as meters:
        eventually(lambda: b'status="ok"} 1.0' in meters.text())
        assert b'status="failed"} 2.0' in meters.text()
    assert len(tries) == 3
