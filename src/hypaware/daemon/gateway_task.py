"""Run the gateway inside the daemon: open it, follow the config, and close it without breaking its clients.

The gateway listens while a client is enabled or attached, or the config has an upstream. Routes change in place, so
that connections and streams continue; a new address is opened before the old one is closed. An address that cannot be
opened is logged and retried, and delays nothing else. Shutdown runs in this order: stop accepting connections, release
the address, give open exchanges a grace period, make every finished exchange durable, seal the spool.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import count

from hypaware import telemetry
from hypaware.clients.session_hook import HookNotes
from hypaware.config import ClientConfig, Config, UpstreamConfig
from hypaware.daemon.status_file import StatusFile
from hypaware.engine.background import RetryTimer, TaskClock, run_in_thread
from hypaware.errors import HypError, NotReady
from hypaware.gateway import handover
from hypaware.gateway import routes as gateway_routes
from hypaware.gateway.attach_status import ClientActivity
from hypaware.gateway.exchange_writer import ExchangeWriter
from hypaware.gateway.handover import HeldSocket
from hypaware.gateway.routes import Routes
from hypaware.gateway.server import GatewayServer
from hypaware.home import Home
from hypaware.home.session_context import find_session_columns
from hypaware.spool.writer import Spool

log = logging.getLogger("hypaware.daemon")

GRACE_SECONDS = 10.0
"""The time that open streams have to finish when the daemon stops."""
_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class GatewaySettings:
    listen: str
    upstreams: tuple[UpstreamConfig | gateway_routes.Route, ...]
    recorded: tuple[str, ...]
    is_needed: bool
    """False if no client is enabled or attached and the config has no upstream."""
    allowed_hosts: tuple[str, ...] = ()

    @classmethod
    def read(cls, home: Home, config: Config) -> GatewaySettings:
        recorded = tuple(
            name for name in gateway_routes.list_presets() if config.clients.get(name, ClientConfig()).enabled
        )
        custom = gateway_routes.read_custom_upstreams(home)
        is_needed = bool(recorded or config.gateway.upstreams or gateway_routes.has_attached_client(home))
        gateway = config.gateway
        return cls(gateway.listen, (*gateway.upstreams, *custom), recorded, is_needed, gateway.allowed_hosts)

    def routes(self) -> Routes:
        return Routes(self.upstreams, self.recorded, self.allowed_hosts)


@dataclass
class _RunningGateway:
    """A gateway that listens, or that still serves connections after its address changed."""

    gateway: GatewayServer
    claim: HeldSocket
    activity: ClientActivity
    listen: str
    """The address in the config; its port may be 0."""
    address: str
    """Where it listens."""
    settings: GatewaySettings


class GatewayTask:
    def __init__(self, spool: Spool, config: Callable[[], Config], status: StatusFile, clock: TaskClock) -> None:
        """Take ownership of `spool`: `close` seals it."""
        self._spool = spool
        self._home: Home = spool.home
        self._config = config
        self._status = status
        self._clock = clock
        self._notes = HookNotes(self._home)
        self._applied_config = config()
        self._writer = ExchangeWriter(
            spool,
            self._applied_config,
            facts=self._read_context,
            on_client_seen=self._record_client,
        )
        self._numbers = count()
        self._open: _RunningGateway | None = None
        self._retired: list[_RunningGateway] = []
        """Gateways that no longer listen, but serve their open connections until the daemon ends."""
        self._open_retry, self._fallback_retry = RetryTimer(clock), RetryTimer(clock)
        self._wakeup = asyncio.Event()
        self._fallback_start: asyncio.Future[None] | None = None
        self._activity_lock = threading.Lock()
        self._state = "off"
        self._error: str | None = None
        self._since = clock.now()
        self._rows_seen = 0
        self.last_rows_at: float | None = None
        """The monotonic time at which the newest rows were noticed."""

    async def begin(self) -> None:
        """Run the first check. Afterwards the address answers, or the status file says why not."""
        # The unfinished exchanges of an earlier daemon are lost.
        await run_in_thread(lambda: shutil.rmtree(self._home.run / "spill", ignore_errors=True), "gateway")
        await self._check()
        with suppress(OSError):
            self._notes.announce()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._absorb_notes())
            while True:
                # Not `wait_for`: in Python 3.11 it drops a cancellation that arrives together with the event.
                with suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_SECONDS):
                        await self._wakeup.wait()
                self._wakeup.clear()
                await self._check()

    async def _absorb_notes(self) -> None:
        """Record the notes of the clients' hooks every second. Never fails: they are tried again."""
        while True:
            with suppress(Exception):
                await run_in_thread(self._notes.absorb, "notes")
            await asyncio.sleep(_POLL_SECONDS)

    def reload(self) -> None:
        self._open_retry.reset()
        self._wakeup.set()

    async def close(self) -> None:
        """Shut down after `run` was cancelled. Returns when every finished exchange is durable and sealed."""
        with suppress(OSError):
            self._notes.retract()
        if self._fallback_start is not None:
            # It may be handing over the socket right now.
            await asyncio.wait([self._fallback_start])
        if (current := self._open) is not None:
            self._open = None
            await self._retire(current)
        await asyncio.gather(*(each.gateway.stop(GRACE_SECONDS) for each in self._retired))
        if current is not None:
            self._write_activity(current)
        await run_in_thread(self._writer.close, "store")
        self._report()
        await run_in_thread(self._spool.close, "spool")

    async def _check(self) -> None:
        try:
            await self._apply_settings()
            if self._open is not None and self._fallback_retry.is_due():
                self._fallback_start = run_in_thread(self._start_fallback, "fallback")
                with self._fallback_retry:
                    await asyncio.shield(self._fallback_start)
        except HypError as error:
            self._fail(error.message)
        except Exception as error:
            log.exception("the gateway failed")
            self._fail(type(error).__name__)
        else:
            if self._open is not None:
                self._error = None
        self._report()

    async def _apply_settings(self) -> None:
        config = self._config()
        settings = await run_in_thread(lambda: GatewaySettings.read(self._home, config), "attachments")
        if config is not self._applied_config:
            self._writer.update_config(config)
            self._applied_config = config
        for each in self._gateways():
            if (each.settings.upstreams, each.settings.recorded) != (settings.upstreams, settings.recorded):
                each.gateway.update_routes(settings.routes())
                each.settings = settings
                log.info("the gateway on %s uses new routes", each.listen)
        current = self._open
        if not settings.is_needed:
            if current is not None:
                await self._retire(current)
                self._open = None
            if self._state != "off":
                log.info("the gateway is off: no client is enabled or attached")
                self._set_state("off")
        elif current is None or current.listen != settings.listen:
            if not self._open_retry.is_due():
                return
            if current is not None:
                self._write_activity(current)
            with self._open_retry:
                self._open = await self._open_gateway(settings)
            self._set_state("listening")
            log.info("the gateway listens on %s", self._open.address)
            if current is not None:
                await self._retire(current)

    def _gateways(self) -> list[_RunningGateway]:
        return [*self._retired, *([self._open] if self._open else ())]

    async def _open_gateway(self, settings: GatewaySettings) -> _RunningGateway:
        claim = await run_in_thread(lambda: handover.open_address(self._home, settings.listen), "address")
        try:
            gateway = GatewayServer(
                claim.socket,
                settings.routes(),
                self._writer.write,
                self._home.run / "spill" / str(next(self._numbers)),
                store=self._writer.store,
                report_overhead=lambda milliseconds: telemetry.record(
                    "hyp_gateway_overhead_ms", milliseconds, hyp_component="gateway"
                ),
                local_pages={handover.HEALTH_PATH: lambda: handover.describe_health(self._home, "gateway")},
            )
            await gateway.start()
            host, port = claim.address
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        except BaseException as error:
            claim.release()
            if isinstance(error, FileNotFoundError):
                raise NotReady(f"the home {self._home.root} no longer exists", kind="home_gone") from error
            raise
        return _RunningGateway(gateway, claim, ClientActivity(self._home, address), settings.listen, address, settings)

    async def _retire(self, gateway: _RunningGateway) -> None:
        """Stop accepting connections at this address; open connections continue."""
        await gateway.gateway.stop_listening()
        gateway.claim.release()
        self._retired.append(gateway)

    def _read_context(self, session: str) -> Mapping[str, str]:
        """Return what hooks have noted about a session. Runs on the recorder's thread."""
        with suppress(Exception):
            self._notes.absorb()
        return find_session_columns(self._home.root, session)

    def _record_client(self, client: str, at: datetime) -> None:
        """Note that a client called. Runs on the recorder's thread."""
        with self._activity_lock:
            for each in self._gateways():
                each.activity.record(client, at)

    def _write_activity(self, gateway: _RunningGateway) -> None:
        with self._activity_lock:
            gateway.activity.write()

    def _start_fallback(self) -> None:
        """Start the fallback listener if it is not running. Runs on its own thread, since it may start a process."""
        if (current := self._open) is None:
            return
        self._write_activity(current)
        if current.claim.ensure_fallback():
            log.info("a fallback listener is ready to serve %s while no daemon runs", current.address)

    def _fail(self, error: str) -> None:
        if self._open is None:
            if (self._state, self._error) != ("down", error):
                log.error("the gateway is down and nothing is recorded: %s; retrying", error)
            self._set_state("down", error)
        elif self._error != error:
            # The gateway still serves at its old address; only the change failed.
            log.warning("the gateway on %s: %s", self._open.address, error)
            self._error = error

    def _set_state(self, state: str, error: str | None = None) -> None:
        if state != self._state:
            self._since = self._clock.now()
        self._state, self._error = state, error

    def _report(self) -> None:
        tally = self._writer.counts
        if tally.rows > self._rows_seen:
            self._rows_seen, self.last_rows_at = tally.rows, self._clock.monotonic()
        counts = [each.gateway.counts for each in self._gateways()]
        dropped = tally.lost + sum(each.dropped + each.failed for each in counts)
        self._status.update(
            "gateway",
            listen=self._open.address if self._open else self._config().gateway.listen,
            state=self._state,
            error=self._error,
            since=self._since,
            exchanges=tally.recorded + tally.ignored + dropped,
            recorded=tally.recorded,
            incomplete=sum(each.incomplete for each in counts),
            dropped=dropped,
            ignored=tally.ignored,
            unknown=dict(tally.unknown),
            without_row=dict(tally.without_row),
            rejected_rows=tally.rejected_rows,
            unreachable=tally.unreachable,
            redacted=dict(tally.redacted),
            last_exchange_at=tally.last_exchange_at,
        )
