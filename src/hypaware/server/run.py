"""The server process, one per home.

    lock ─▶ open the home ─▶ recover incoming/ ─▶ listen, announce the address ─▶ … SIGTERM ─▶ drain, close

`run/server.json` holds `{pid, listen}` while the server listens. Flushes and maintenance run in the background and
never delay a request. On shutdown a running flush continues in the engine; maintenance is cancelled.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from aiohttp import web

from hypaware import durable, lock_file
from hypaware.config import Config
from hypaware.daemon.clock import Clock
from hypaware.engine.launch import Engine
from hypaware.errors import NotReady, UsageError
from hypaware.home import Home
from hypaware.opening import OpenHome, open_home
from hypaware.server import incoming, signing
from hypaware.server.app import make_app
from hypaware.server.flushing import Flushing, by_engine
from hypaware.server.limits import Limits
from hypaware.server.meters import Meters
from hypaware.server.parts import Parts, assemble
from hypaware.server.settings import Settings
from hypaware.server.trouble import log
from hypaware.server.upkeep import upkeep
from hypaware.state import ledger

_MAX_HEADER = 8190
# The time to send the last responses.
_SHUTDOWN_SECONDS = 2.0


@dataclass(frozen=True)
class Options:
    host: str = "127.0.0.1"
    port: int = 18522
    tls_cert: Path | None = None
    tls_key: Path | None = None
    flush: bool = True
    """Whether the server uses an engine at all, for flushes and maintenance."""
    limits: Limits = field(default_factory=Limits)
    revocation_seconds: float = 1.0
    """The time after which a revoked token is rejected."""


def run(
    home: Home,
    config: Config,
    options: Options,
    say: Callable[[str], None],
    engine: Engine | None = None,
    clock: Clock | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT. Returns when every accepted batch is durable."""
    os.umask(0o077)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    log.setLevel(logging.INFO)
    # Never run Spark in this process, where it would take memory and time from requests: use an engine process.
    os.environ.pop("HYP_ENGINE", None)
    with opened(home, options) as context:
        tasks = Keeper(engine or Engine(home), Settings(home, config), clock or Clock()) if options.flush else None
        asyncio.run(_until_signalled(context, tasks, options, say))
    log.info("the server has ended")


@contextmanager
def opened(home: Home, options: Options) -> Iterator[Parts]:
    """Open the home's only server, before it listens, and recover the batches that a killed one left."""
    lock = lock_file.take(home.run / "server.lock")
    if lock is None:
        pid = lock_file.holder(home.run / "server.lock")
        raise NotReady(f"a server of {home.root} is already running (process {pid})", kind="server_running")
    try:
        home_open = open_home(home)
        try:
            _recover(home_open)
            context = assemble(home_open, options.limits, refresh_seconds=options.revocation_seconds)
        except BaseException:
            home_open.store.close()
            raise
        try:
            yield context
        finally:
            context.close()
    finally:
        lock_file.release(lock)


def _recover(home_open: OpenHome) -> None:
    if home_open.rebuilt:
        log.warning("%s", home_open.rebuilt)
    had_ledger = signing.has_server_id(home_open.home)
    server_id = signing.server_id(home_open.home)
    with home_open.store.transaction() as connection:
        lost = had_ledger and ledger.keeper(connection) != server_id
        ledger.keep(connection, server_id)
    if lost:
        log.warning("the ledger was lost with the state; rows that are sent again are recognised by their dedupe keys")
    counts = incoming.settle(home_open.home, home_open.store, ledger_lost=lost)
    if counts.moved or counts.removed:
        log.info(
            "recovered %d acknowledged batches, removed %d that were not acknowledged", counts.moved, counts.removed
        )


async def serve(context: Parts, options: Options, announce: Callable[[str], None], stop: asyncio.Event) -> None:
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
        site = web.TCPSite(runner, options.host, options.port, ssl_context=_tls(options))
        try:
            await site.start()
        except OSError as error:
            raise NotReady(f"cannot listen on {options.host}:{options.port}: {error}", kind="cannot_listen") from error
        announce(_address(runner.addresses[0], tls=options.tls_cert is not None))
        await stop.wait()
        context.draining = True
        await site.stop()
        # Wait before the runner's cleanup, which stops reading the bodies of requests in progress.
        await context.in_flight.wait_until_done(options.limits.drain_seconds)
    finally:
        await runner.cleanup()


@dataclass(frozen=True)
class Keeper:
    """The background tasks: flush received rows and maintain the lake."""

    engine: Engine
    config: Callable[[], Config]
    clock: Clock

    @asynccontextmanager
    async def running(self, metrics: Meters) -> AsyncIterator[None]:
        flush = Flushing(self.engine.home, self.config, metrics, by_engine(self.engine, self.config))
        maintenance = asyncio.create_task(upkeep(self.engine, self.config, metrics, self.clock).run())
        try:
            yield
        finally:
            flush.stop()
            maintenance.cancel()
            await asyncio.wait([maintenance])


async def _until_signalled(context: Parts, tasks: Keeper | None, options: Options, say: Callable[[str], None]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    status_file = context.home.run / "server.json"

    def announce(address: str) -> None:
        durable.write_file(status_file, json.dumps({"pid": os.getpid(), "listen": address}).encode())
        if not _is_safe(options):
            log.warning("listening beyond this machine without TLS: tokens and rows are sent unencrypted")
        log.info("the server of %s listens on %s", context.home.root, address)
        say(f"listening on {address}")

    try:
        async with tasks.running(context.metrics) if tasks else nullcontext():
            await serve(context, options, announce, stop)
    finally:
        status_file.unlink(missing_ok=True)


def _tls(options: Options) -> ssl.SSLContext | None:
    if options.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(options.tls_cert, options.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"cannot use the certificate {options.tls_cert}: {error}") from error
    return context


def _is_safe(options: Options) -> bool:
    """Return whether traffic is encrypted or stays on this machine."""
    if options.tls_cert is not None or options.host == "localhost":
        return True
    try:
        return ip_address(options.host).is_loopback
    except ValueError:
        return False


def _address(socket_name: tuple[object, ...], *, tls: bool) -> str:
    host, port = str(socket_name[0]), socket_name[1]
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
