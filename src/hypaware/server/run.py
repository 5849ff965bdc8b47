"""The server process, one per home.

    lock ─▶ open the home ─▶ recover incoming/ ─▶ listen, announce the address ─▶ … SIGTERM ─▶ drain, close

`run/server.json` holds `{pid, listen}` while the server listens. Flushes and maintenance run in the background and
never delay a request.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from aiohttp import web

from hypaware.config.load import LiveConfig
from hypaware.engine.background import TaskClock
from hypaware.engine.launcher import Engine
from hypaware.errors import NotReady, UsageError
from hypaware.home import Home, durable_files, locks
from hypaware.server import auth, batches
from hypaware.server.app import make_app
from hypaware.server.context import ServerContext, create_context
from hypaware.server.health import log
from hypaware.server.limits import ServerLimits
from hypaware.server.tasks import ServerTasks
from hypaware.state import ledger
from hypaware.state.home_opener import OpenHome, open_home

_MAX_HEADER = 8190
# The time to send the last responses.
_SHUTDOWN_SECONDS = 2.0


@dataclass(frozen=True)
class ServerOptions:
    host: str = "127.0.0.1"
    port: int = 18522
    tls_cert: Path | None = None
    tls_key: Path | None = None
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
        tasks = ServerTasks(engine or Engine(home), config, clock or TaskClock()) if options.flush else None
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
        try:
            _recover(home_open)
            context = create_context(home_open, options.limits, refresh_seconds=options.revocation_seconds)
        except BaseException:
            home_open.store.close()
            raise
        try:
            yield context
        finally:
            context.close()
    finally:
        locks.unlock(lock)


def _recover(home_open: OpenHome) -> None:
    if home_open.rebuilt:
        log.warning("%s", home_open.rebuilt)
    had_ledger = auth.has_server_id(home_open.home)
    server_id = auth.server_id(home_open.home)
    with home_open.store.transaction() as connection:
        lost = had_ledger and ledger.ledger_owner(connection) != server_id
        ledger.set_ledger_owner(connection, server_id)
    if lost:
        log.warning("the ledger was lost with the state; rows that are sent again are recognised by their dedupe keys")
    counts = batches.recover_incoming(home_open.home, home_open.store, ledger_lost=lost)
    if counts.moved or counts.removed:
        log.info(
            "recovered %d acknowledged batches, removed %d that were not acknowledged", counts.moved, counts.removed
        )


async def _until_signalled(
    context: ServerContext, tasks: ServerTasks | None, options: ServerOptions, say: Callable[[str], None]
) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    status_file = context.home.run / "server.json"

    def announce(address: str) -> None:
        durable_files.write_atomic(status_file, json.dumps({"pid": os.getpid(), "listen": address}).encode())
        if not _is_secure(options):
            log.warning("listening beyond this machine without TLS: tokens and rows are sent unencrypted")
        log.info("the server of %s listens on %s", context.home.root, address)
        say(f"listening on {address}")

    try:
        async with tasks.running(context.metrics) if tasks else nullcontext():
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
        site = web.TCPSite(runner, options.host, options.port, ssl_context=_tls_context(options))
        try:
            await site.start()
        except OSError as error:
            raise NotReady(f"cannot listen on {options.host}:{options.port}: {error}", kind="cannot_listen") from error
        announce(_server_address(runner.addresses[0], tls=options.tls_cert is not None))
        await stop.wait()
        context.draining = True
        await site.stop()
        # Wait before the runner's cleanup, which stops reading the bodies of requests in progress.
        await context.in_flight.wait_until_done(options.limits.drain_seconds)
    finally:
        await runner.cleanup()


def _tls_context(options: ServerOptions) -> ssl.SSLContext | None:
    if options.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(options.tls_cert, options.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"cannot use the certificate {options.tls_cert}: {error}") from error
    return context


def _is_secure(options: ServerOptions) -> bool:
    """Return whether traffic is encrypted or stays on this machine."""
    if options.tls_cert is not None or options.host == "localhost":
        return True
    try:
        return ip_address(options.host).is_loopback
    except ValueError:
        return False


def _server_address(socket_name: tuple[object, ...], *, tls: bool) -> str:
    host, port = str(socket_name[0]), socket_name[1]
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
