"""The server's process: one per home, from its lock to its drain.

    lock ─▶ open the home ─▶ settle incoming/ ─▶ listen, say where ─▶ … SIGTERM ─▶ take nothing new, finish, end

`run/server.json` says `{pid, listen}` while it listens. Beside the requests, and never on their way, what came is
flushed and the lake is kept in shape. At the end a flush goes on without us; maintenance is broken off.
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
# For the last answers to leave.
_ANSWER_SECONDS = 2.0


@dataclass(frozen=True)
class Options:
    host: str = "127.0.0.1"
    port: int = 18522
    tls_cert: Path | None = None
    tls_key: Path | None = None
    flush: bool = True
    """Whether an engine is asked for anything at all: for flushes, and for maintenance."""
    limits: Limits = field(default_factory=Limits)
    look_every: float = 1.0
    """Seconds after which a token that was revoked is known to be."""


def run(
    home: Home,
    config: Config,
    options: Options,
    say: Callable[[str], None],
    engine: Engine | None = None,
    clock: Clock | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT, and ends when everything that was taken is durable."""
    os.umask(0o077)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    log.setLevel(logging.INFO)
    # Spark in this process would take the requests' memory and their time: flushes go to an engine of its own.
    os.environ.pop("HYP_ENGINE", None)
    with opened(home, options) as parts:
        keeper = Keeper(engine or Engine(home), Settings(home, config), clock or Clock()) if options.flush else None
        asyncio.run(_until_signalled(parts, keeper, options, say))
    log.info("the server ends")


@contextmanager
def opened(home: Home, options: Options) -> Iterator[Parts]:
    """The home's one server, before it listens: what a killed one left is settled."""
    lock = lock_file.take(home.run / "server.lock")
    if lock is None:
        pid = lock_file.holder(home.run / "server.lock")
        raise NotReady(f"a server of {home.root} is running already (process {pid})", kind="server_running")
    try:
        found = open_home(home)
        try:
            _settle(found)
            parts = assemble(found, options.limits, look_every=options.look_every)
        except BaseException:
            found.store.close()
            raise
        try:
            yield parts
        finally:
            parts.close()
    finally:
        lock_file.release(lock)


def _settle(found: OpenHome) -> None:
    if found.rebuilt:
        log.warning("%s", found.rebuilt)
    had_ledger = signing.has_server_id(found.home)
    server_id = signing.server_id(found.home)
    with found.store.transaction() as connection:
        lost = had_ledger and ledger.keeper(connection) != server_id
        ledger.keep(connection, server_id)
    if lost:
        log.warning("the ledger was lost with the state; rows that are sent again are known by their keys")
    settled = incoming.settle(found.home, found.store, ledger_lost=lost)
    if settled.moved or settled.removed:
        log.info("%d batches moved on, %d that nobody was told of removed", settled.moved, settled.removed)


async def serve(parts: Parts, options: Options, announce: Callable[[str], None], stop: asyncio.Event) -> None:
    """Listens until `stop`, then finishes what is under way."""
    runner = web.AppRunner(
        make_app(parts),
        access_log=None,
        # Bodies are unpacked by us, within limits.
        auto_decompress=False,
        keepalive_timeout=options.limits.quiet_seconds,
        max_line_size=_MAX_HEADER,
        max_field_size=_MAX_HEADER,
        shutdown_timeout=_ANSWER_SECONDS,
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
        parts.draining = True
        await site.stop()
        # Before the runner's own end: from then on it reads no more of a body that is under way.
        await parts.under_way.none_left(options.limits.drain_seconds)
    finally:
        await runner.cleanup()


@dataclass(frozen=True)
class Keeper:
    """What becomes of the rows that were received: they are flushed, and the lake is kept in shape."""

    engine: Engine
    config: Callable[[], Config]
    clock: Clock

    @asynccontextmanager
    async def at_work(self, meters: Meters) -> AsyncIterator[None]:
        flushing = Flushing(self.engine.home, self.config, meters, by_engine(self.engine, self.config))
        keeping = asyncio.create_task(upkeep(self.engine, self.config, meters, self.clock).run())
        try:
            yield
        finally:
            flushing.stop()
            keeping.cancel()
            await asyncio.wait([keeping])


async def _until_signalled(parts: Parts, keeper: Keeper | None, options: Options, say: Callable[[str], None]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    told = parts.home.run / "server.json"

    def announce(address: str) -> None:
        durable.write_file(told, json.dumps({"pid": os.getpid(), "listen": address}).encode())
        if not _is_safe(options):
            log.warning("it listens beyond this machine without TLS: tokens and rows can be read on the way")
        log.info("the server of %s listens on %s", parts.home.root, address)
        say(f"listening on {address}")

    try:
        async with keeper.at_work(parts.meters) if keeper else nullcontext():
            await serve(parts, options, announce, stop)
    finally:
        told.unlink(missing_ok=True)


def _tls(options: Options) -> ssl.SSLContext | None:
    if options.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(options.tls_cert, options.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"the certificate {options.tls_cert} cannot be used: {error}") from error
    return context


def _is_safe(options: Options) -> bool:
    if options.tls_cert is not None or options.host == "localhost":
        return True
    try:
        return ip_address(options.host).is_loopback
    except ValueError:
        return False


def _address(found: tuple[object, ...], *, tls: bool) -> str:
    host, port = str(found[0]), found[1]
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
