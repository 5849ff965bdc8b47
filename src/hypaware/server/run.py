"""The server process, one per home.

    lock ─▶ open the home ─▶ recover incoming/ ─▶ listen, announce the address ─▶ … SIGTERM ─▶ drain, close

A server of a shared lake recovers nothing: other servers may be running, and a flush finds what a killed one left.

`run/server.json` holds `{pid, listen}` while the server listens.

A flush runs in the engine when the spool is large or old enough. A failed flush is retried with backoff; the server
keeps accepting batches. When the server ends, a running flush continues in the engine, and maintenance is cancelled.

Maintenance uses the daemon's task and settings. The server ignores the machine's battery, and waits while a daemon runs
in the same home, which already does the maintenance.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    closing,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path

from aiohttp import web

from hypaware.config import Config, LiveConfig, MaintainConfig
from hypaware.config.shared_lake import find_shared_lake
from hypaware.engine import client
from hypaware.engine.background import Backoff, TaskClock, run_in_thread, run_periodic_task
from hypaware.engine.launcher import Engine
from hypaware.errors import NotReady
from hypaware.home import Home, daemon_process, durable_files, locks
from hypaware.maintain.task import MaintenanceTask, quiet_hours_reason
from hypaware.server import auth, batch_storage
from hypaware.server.app import ServerContext, make_app
from hypaware.server.connections import open_listeners
from hypaware.server.health import ServerMetrics, log
from hypaware.server.http import load_certificate
from hypaware.server.limits import ServerLimits
from hypaware.server.page import PageProcess, TeamPageOptions, is_loopback
from hypaware.spool import reader, segments
from hypaware.spool.received import ReceivedObjects, open_received
from hypaware.state import ledger
from hypaware.state.home_opener import OpenHome, open_home

_MAX_HEADER = 8190
# The time to send the last responses.
_SHUTDOWN_SECONDS = 2.0
_POLL_SECONDS = 1.0
_FIRST_BACKOFF_SECONDS = 5.0
_LONGEST_BACKOFF_SECONDS = 900.0


@dataclass(frozen=True)
class ServerOptions:
    host: str = "127.0.0.1"
    port: int = 18522
    tls_cert: Path | None = None
    tls_key: Path | None = None
    page: TeamPageOptions | None = None
    """The page that shows the lake to people; None if there is none."""
    flush: bool = True
    """Whether the server uses an engine at all, for flushes and maintenance."""
    limits: ServerLimits = field(default_factory=ServerLimits)
    revocation_seconds: float = 1.0
    """The time after which a revoked token is rejected."""


def run_server(
    home: Home,
    options: ServerOptions,
    say: Callable[[str], None],
    engine: Engine | None = None,
    clock: TaskClock | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT. Returns when every accepted batch is durable."""
    os.umask(0o077)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    log.setLevel(logging.INFO)
    # Never run Spark in this process, where it would take memory and time from requests: use an engine process.
    os.environ.pop("HYP_ENGINE", None)
    config = LiveConfig(home, log)
    with open_server(home, options) as context:
        tasks: AbstractAsyncContextManager[None] = nullcontext()
        if options.flush:
            tasks = _running_tasks(engine or Engine(home), config, clock or TaskClock(), context)
        asyncio.run(_until_signalled(context, tasks, options, say))
    log.info("the server has ended")


@contextmanager
def open_server(home: Home, options: ServerOptions) -> Iterator[ServerContext]:
    """Open the home's only server, before it listens, and recover the batches that a killed one left."""
    lock = locks.try_lock(home.run / "server.lock")
    if lock is None:
        pid = locks.lock_holder(home.run / "server.lock")
        raise NotReady(f"a server of {home.root} is already running (process {pid})", kind="server_running")
    try:
        home_open = open_home(home)
        with closing(home_open.store):
            _recover(home_open)
            context = ServerContext(home_open, options.limits, refresh_seconds=options.revocation_seconds)
            # Finishes every batch that was received, before the store is closed.
            with closing(context.receiver):
                yield context
    finally:
        locks.unlock(lock)


def _recover(home_open: OpenHome) -> None:
    if home_open.rebuilt:
        log.warning("%s", home_open.rebuilt)
    if find_shared_lake(home_open.home) is not None:
        return
    had_ledger = (auth.server_folder(home_open.home) / "server.id").is_file()
    server_id = auth.server_id(home_open.home, home_open.store)
    with home_open.store.transaction() as connection:
        lost = had_ledger and ledger.ledger_owner(connection) != server_id
        ledger.set_ledger_owner(connection, server_id)
    if lost:
        log.warning("the ledger was lost with the state; rows that are sent again are recognised by their dedupe keys")
    moved, removed = batch_storage.recover_incoming(home_open.home, home_open.store, ledger_lost=lost)
    if moved or removed:
        log.info("recovered %d acknowledged batches, removed %d that were not acknowledged", moved, removed)


async def _until_signalled(
    context: ServerContext,
    tasks: AbstractAsyncContextManager[None],
    options: ServerOptions,
    say: Callable[[str], None],
) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    status_file = context.home.run / "server.json"
    page_address: str | None = None

    def announce(address: str) -> None:
        status = {"pid": os.getpid(), "listen": address, **({"page": page_address} if page_address else {})}
        durable_files.write_atomic(status_file, json.dumps(status).encode())
        if not _is_secure(options):
            log.warning("listening beyond this machine without TLS: tokens and rows are sent unencrypted")
        log.info("the server of %s listens on %s", context.home.root, address)
        say(f"listening on {address}")
        if page_address:
            log.info("the page is at %s", page_address)
            say(f"page at {page_address}")

    try:
        async with AsyncExitStack() as stack:
            if options.page is not None:
                page_address = await stack.enter_async_context(_running_page(context.home, options.page))
            await stack.enter_async_context(tasks)
            await serve(context, options, announce, stop)
    finally:
        status_file.unlink(missing_ok=True)


async def serve(
    context: ServerContext, options: ServerOptions, announce: Callable[[str], None], stop: asyncio.Event
) -> None:
    """Listen until `stop` is set, then finish the requests in progress."""
    runner = web.AppRunner(
        make_app(context),
        access_log=None,
        # Bodies are decompressed later, within limits.
        auto_decompress=False,
        keepalive_timeout=options.limits.quiet_seconds,
        max_line_size=_MAX_HEADER,
        max_field_size=_MAX_HEADER,
        shutdown_timeout=_SHUTDOWN_SECONDS,
    )
    await runner.setup()
    try:
        tls = load_certificate(options.tls_cert, options.tls_key)
        listeners = await open_listeners(options.host, options.port)
        assert runner.server is not None
        accepting = [asyncio.create_task(context.connections.accept(each, runner.server, tls)) for each in listeners]
        try:
            host, port = listeners[0].getsockname()[:2]
            announce(f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}")
            await stop.wait()
        finally:
            context.draining = True
            for task in accepting:
                task.cancel()
            await asyncio.wait(accepting)
            for each in listeners:
                each.close()
        # Wait before the runner's cleanup, which stops reading the bodies of requests in progress.
        await context.in_flight.wait_until_done(options.limits.drain_seconds)
    finally:
        await runner.cleanup()


def _is_secure(options: ServerOptions) -> bool:
    """Return whether traffic is encrypted or stays on this machine."""
    return options.tls_cert is not None or is_loopback(options.host)


@asynccontextmanager
async def _running_page(home: Home, options: TeamPageOptions) -> AsyncIterator[str]:
    """Serve the page from a process of its own, and yield its address."""
    options.to_rules()
    load_certificate(options.tls_cert, options.tls_key)
    listeners = await open_listeners(options.host, options.port)
    host, port = listeners[0].getsockname()[:2]
    task = asyncio.create_task(PageProcess(home, options, listeners).run())
    try:
        yield f"{'https' if options.tls_cert else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
    finally:
        task.cancel()
        await asyncio.wait([task])
        for each in listeners:
            each.close()


@asynccontextmanager
async def _running_tasks(
    engine: Engine, config: Callable[[], Config], clock: TaskClock, context: ServerContext
) -> AsyncIterator[None]:
    home, metrics = engine.home, context.metrics
    flush = ServerFlushTask(
        home,
        config,
        metrics,
        lambda: client.run_job(client.choose_engine(home, config(), engine), "flush", {}),
        received=open_received(home, context.store),
    )
    reason_to_wait = partial(server_reason_to_wait, home)
    counter = _MaintenanceCounter(metrics)
    maintenance = MaintenanceTask(engine, config, counter, clock, reason_to_wait=reason_to_wait, log=log)
    backoff = Backoff(_FIRST_BACKOFF_SECONDS, _LONGEST_BACKOFF_SECONDS)
    tasks = [
        asyncio.create_task(run_periodic_task(flush, log, backoff)),
        asyncio.create_task(run_periodic_task(maintenance, log)),
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


class ServerFlushTask:
    name = "flush"
    retry_on = (Exception,)

    def __init__(
        self,
        home: Home,
        config: Callable[[], Config],
        metrics: ServerMetrics,
        flush: Callable[[], object],
        poll_seconds: float = _POLL_SECONDS,
        received: ReceivedObjects | None = None,
    ) -> None:
        self._home = home
        self._config = config
        self._metrics = metrics
        self._flush = flush
        self._poll_seconds = poll_seconds
        self._received = received

    async def wait(self, retry_in: float | None) -> None:
        await asyncio.sleep(max(self._poll_seconds, retry_in or 0.0))

    async def check(self) -> None:
        if await run_in_thread(self._is_due, "spool"):
            # Not a cancellable job: when the server ends, the engine finishes the flush alone.
            await run_in_thread(self._flush, "flush")
            self._metrics.flushes.labels("ok").inc()

    def record_failure(self, _retry_in: float | None) -> None:
        self._metrics.flushes.labels("failed").inc()

    def _is_due(self) -> bool:
        """Decide from the spool's folders and the list of received objects, without starting an engine."""
        spooled = [reader.summarize_spool(self._home, name) for name in segments.list_spooled_datasets(self._home)]
        spooled += self._received.summarize() if self._received else []
        spooled = [each for each in spooled if each.segments]
        if not spooled:
            return False
        limits = self._config().flush
        return (
            time.time() - min(each.oldest_at or 0.0 for each in spooled) >= limits.interval
            or sum(each.rows for each in spooled) >= limits.max_rows
            or sum(each.bytes for each in spooled) >= limits.max_bytes
        )


def server_reason_to_wait(home: Home, settings: MaintainConfig, now: datetime) -> str | None:
    """Return why maintenance has to wait, or None if it may run."""
    if locks.is_locked(daemon_process.daemon_lock_path(home)):
        return "the daemon that runs in this home does the maintenance"
    return quiet_hours_reason(settings, now)


class _MaintenanceCounter:
    """Counts the maintenance runs for `/metrics`."""

    def __init__(self, metrics: ServerMetrics) -> None:
        self._metrics = metrics

    def update(self, part: str, **facts: object) -> None:
        if "last_status" in facts:
            self._metrics.maintenances.labels(facts["last_status"]).inc()
