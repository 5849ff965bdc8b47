"""The server's flush task: flushes a large or old spool and retries failures."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hypaware.config import Config, FlushConfig
from hypaware.engine.background import Backoff, run_periodic_task
from hypaware.errors import Retryable
from hypaware.home import Home
from hypaware.server.health import ServerMetrics, log
from hypaware.server.run import ServerFlushTask
from hypaware.spool import segments
from hypaware.spool.writer import Spool
from tests.support.processes import PATIENCE, eventually
from tests.support.rows import DATASET, rows

NEVER = 10.0**6


@contextmanager
def running(home: Home, flush: Callable[[], object], **settings: Any) -> Iterator[ServerMetrics]:
    """Run the flush task in the event loop of a thread."""
    metrics = ServerMetrics()
    config = Config(flush=FlushConfig(**{"interval": NEVER, **settings}))
    task = ServerFlushTask(home, lambda: config, metrics, flush, poll_seconds=0.005)
    loop = asyncio.new_event_loop()
    runner = loop.create_task(run_periodic_task(task, log, Backoff(0.005)))
    thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait([runner])))
    thread.start()
    try:
        yield metrics
    finally:
        loop.call_soon_threadsafe(runner.cancel)
        thread.join(PATIENCE)
        loop.close()


def fill_spool(home: Home, count: int) -> None:
    with Spool(home) as spool:
        spool.append(DATASET, rows(count))


def empty_spool(home: Home) -> None:
    for segment in segments.list_sealed_segments(segments.spool_folder(home, DATASET)):
        segment.path.unlink()


@pytest.mark.parametrize("settings", [{"interval": 0.001}, {"max_rows": 10}, {"max_bytes": 1000}])
def test_old_or_large_spool_is_flushed(home: Home, settings: dict[str, Any]) -> None:
    flushes: list[str] = []

    def flush() -> None:
        flushes.append("flush")
        empty_spool(home)

    fill_spool(home, 10)
    with running(home, flush, **settings) as metrics:
        eventually(lambda: flushes)
        eventually(lambda: b'hyp_server_flushes_total{status="ok"} 1.0' in metrics.text())
    assert flushes == ["flush"], "an empty spool is not flushed again"


def test_small_and_recent_spool_is_not_flushed(home: Home) -> None:
    fill_spool(home, 10)
    task = ServerFlushTask(home, lambda: Config(flush=FlushConfig(interval=NEVER)), ServerMetrics(), lambda: None)
    assert not task._is_due()


def test_failed_flush_is_retried(home: Home) -> None:
    attempts: list[str] = []

    def flush() -> None:
        attempts.append("flush")
        if len(attempts) == 1:
            raise Retryable("the engine died")
        if len(attempts) == 2:
            raise ZeroDivisionError("a bug")
        empty_spool(home)

    fill_spool(home, 10)
    with running(home, flush, interval=0.001) as metrics:
        eventually(lambda: b'status="ok"} 1.0' in metrics.text())
        assert b'status="failed"} 2.0' in metrics.text()
    assert len(attempts) == 3
